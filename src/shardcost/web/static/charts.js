// The pictures of the page, each a small part of its own; panels import from here.

export { bars } from "./charts/bars.js";
export { FONT, fitted, html, number, svg, textWidth, unique } from "./charts/dom.js";
export { figure, Frame } from "./charts/figure.js";
export { frontChart } from "./charts/front.js";
export { gantt } from "./charts/gantt.js";
export { colourOfGroup, colourOfKind } from "./charts/meanings.js";
export { SHAPES } from "./charts/marks.js";
export { plot } from "./charts/plot.js";
export { apart, around, fromZero, linear, logarithmic } from "./charts/scales.js";
