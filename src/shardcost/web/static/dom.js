// @ts-check
// Elements from plain values. Texts always become text nodes: names come from files that anyone
// may have written, so nothing on this page is ever parsed as markup.

const SVG = "http://www.w3.org/2000/svg";

/**
 * Return a new element.
 * @param {string} tag
 * @param {Record<string, any>} [props] attributes; `on` maps events to listeners, `data` to data-*
 * @param {...(Node|string|number|null|undefined|false|Array<any>)} children
 * @returns {HTMLElement & Record<string, any>}
 */
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  setProps(element, props);
  append(element, children);
  return /** @type {any} */ (element);
}

/**
 * Return a new SVG element.
 * @param {string} tag
 * @param {Record<string, any>} [props]
 * @param {...any} children
 * @returns {SVGElement}
 */
export function s(tag, props = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  setProps(element, props);
  append(element, children);
  return element;
}

/** @param {Element} element @param {Record<string, any>} props */
function setProps(element, props) {
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) {
        element.addEventListener(event, /** @type {any} */ (listener));
      }
    } else if (name === "data") {
      Object.assign(/** @type {HTMLElement} */ (element).dataset, value);
    } else {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
}

/** @param {Element} element @param {any[]} children */
function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
}

/**
 * Return the element with an id that the page is known to have.
 * @param {string} id
 * @returns {any}
 */
export function byId(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`the page has no #${id}`);
  return found;
}

/**
 * Return a number that can be asked where it comes from.
 * @param {string} text
 * @param {string} figure as /api/why names it
 * @param {{ask?: Record<string, any>|null, label?: string, id?: string}} [about]
 */
export function number(text, figure, about = {}) {
  const label = about.label ? `${about.label} ${text}, why` : `${text}, why`;
  return h(
    "button",
    {
      type: "button",
      class: "number",
      id: about.id,
      title: "Where this number comes from",
      "aria-label": label,
      data: {
        why: figure,
        ...(about.ask ? { whyAsk: JSON.stringify(about.ask) } : {}),
      },
    },
    text,
  );
}

/**
 * Replace an element's content; the focus stays on the number it was on.
 * @param {Element} root
 * @param {...any} children
 */
export function refill(root, ...children) {
  const active = /** @type {HTMLElement|null} */ (document.activeElement);
  const figure = active && root.contains(active) ? active.dataset.why : undefined;
  root.replaceChildren();
  append(root, children);
  if (!figure) return;
  for (const each of root.querySelectorAll("[data-why]")) {
    if (/** @type {HTMLElement} */ (each).dataset.why === figure) {
      /** @type {HTMLElement} */ (each).focus({ preventScroll: true });
      return;
    }
  }
}

let timer = 0;

/**
 * Say something to those who listen rather than look.
 * @param {string} text
 */
export function announce(text) {
  const region = byId("announcer");
  window.clearTimeout(timer);
  // Emptied first, so that the same words twice are spoken twice.
  region.textContent = "";
  timer = window.setTimeout(() => {
    region.textContent = text;
  }, 60);
}
