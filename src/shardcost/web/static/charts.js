// The pictures of the page, each a small part of its own; panels import from here.
//
// Names that tests and scripts may rely on, beside those of app.js:
//   svg.chart (role=img, aria-label, tabindex=0); .chart-tip:not([hidden]) what is pointed at;
//   .panel-error .panel-empty .panel-table in a panel; .panel-body.is-waiting, .is-stale
//   svg.timeline .gantt-in .gantt-out .gantt-left .gantt-right .gantt-reset .gantt-range
//   #timeline-layer #timeline-step (aria-pressed) #timeline-figures #timeline-totals #timeline-cut
//   svg.scaling-time svg.scaling-efficiency svg.scaling-ratio #scaling-vary #scaling-words #scaling-table
//   svg.collective-time svg.collective-rate #collective-group #collective-name #collective-gpus
//   #collective-nodes #collective-library #collective-mode #collective-words #collective-readout
//   #collective-notes
//   svg.ring svg.topology #ring-collective #ring-algorithm #ring-n #ring-size #ring-speed #ring-play
//   #ring-step #ring-back #ring-reset #ring-counter #ring-words #ring-counters #ring-links
//   #ring-formula #ring-topology-words
//   svg.roofline #roofline-words #roofline-detail #roofline-table
//   svg.load-ttft svg.load-tpot svg.load-queue svg.load-kv svg.load-ratio #load-words #load-about
//   #load-table #load-asked #load-notes #load-ratio-words
//   svg.memory #memory-words #memory-table;  svg.front

export { bars } from "./charts/bars.js";
export { FONT, fitted, html, number, svg, textWidth, unique } from "./charts/dom.js";
export { figure, Frame } from "./charts/figure.js";
export { frontChart } from "./charts/front.js";
export { gantt } from "./charts/gantt.js";
export { colourOfGroup, colourOfKind } from "./charts/meanings.js";
export { SHAPES } from "./charts/marks.js";
export { plot } from "./charts/plot.js";
export { apart, around, fromZero, linear, logarithmic } from "./charts/scales.js";
