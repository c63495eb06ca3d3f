// What charts add to the page's own elements (`dom.js`): how wide a text is, names for parts.

export { h as html, number, s as svg } from "../dom.js";

export const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif";

const ruler = document.createElement("canvas").getContext("2d");

/** Return how wide a text is in pixels. */
export function textWidth(text, size = 12, weight = 400) {
  ruler.font = `${weight} ${size}px ${FONT}`;
  return ruler.measureText(text).width;
}

/** Return a text that fits a width, cut with an ellipsis if need be ("" if nothing useful fits). */
export function fitted(text, width, size = 12) {
  if (textWidth(text, size) <= width) return text;
  for (let length = text.length - 1; length >= 3; length -= 1) {
    const cut = `${text.slice(0, length).trimEnd()}…`;
    if (textWidth(cut, size) <= width) return cut;
  }
  return "";
}

let counter = 0;

/** Return a name that no other element of the document has. */
export function unique(prefix) {
  counter += 1;
  return `${prefix}-${counter}`;
}
