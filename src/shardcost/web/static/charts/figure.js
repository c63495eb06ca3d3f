// The frame of every picture: an SVG that is drawn at the width it has, again when that changes or
// the theme does; values under the pointer or chosen with the arrow keys; colours resolved when it
// is drawn, so that a saved picture looks the same.

import { MARKS } from "./marks.js";
import { FONT, fitted, html, svg, textWidth, unique } from "./dom.js";

const NARROW = 560;
const REACH = 36;
const KEYS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, PageDown: 10, PageUp: -10 };

/**
 * Return a picture in `root`.
 *
 * `draw(frame)` fills it; `frame.targets([...])` names what can be pointed at: boxes
 * {x, y, w, h, at: [x, y], title, lines, pick, dots, cross}. `height` is a number, or a function
 * of the width.
 */
export function figure(root, page, { height, draw, name = "", onTarget = null, keys = null }) {
  const hint = html("span", { class: "unseen", id: unique("hint") }, "");
  const picture = svg("svg", {
    class: `chart ${name}`.trim(),
    role: "img",
    tabindex: "0",
    "aria-label": "",
    "aria-describedby": hint.id,
    "font-family": FONT,
    "font-size": "12",
  });
  const tip = html("div", { class: "chart-tip", hidden: true });
  const box = html("div", { class: "chart-box" }, picture, tip, hint);
  root.append(box);
  const state = { targets: [], chosen: -1, cross: null, width: 0, asked: false, frame: null };

  function redraw() {
    state.asked = false;
    const width = Math.round(box.clientWidth);
    if (!width || !box.isConnected) return;
    state.width = width;
    const tall = typeof height === "function" ? height(width) : height;
    picture.setAttribute("width", width);
    picture.setAttribute("height", tall);
    picture.setAttribute("viewBox", `0 0 ${width} ${tall}`);
    picture.replaceChildren();
    state.targets = [];
    const frame = new Frame(picture, width, tall, page, (found) => {
      state.targets = found;
    });
    state.frame = frame;
    draw(frame);
    state.cross = frame.add("g", { class: "crosshair", "pointer-events": "none" });
    if (state.chosen >= state.targets.length) state.chosen = -1;
    if (document.activeElement === picture && state.chosen >= 0) show(state.chosen, false);
    else hide();
  }

  function later() {
    if (state.asked) return;
    state.asked = true;
    requestAnimationFrame(redraw);
  }

  function hide() {
    tip.hidden = true;
    state.cross?.replaceChildren();
  }

  function show(index, spoken) {
    const target = state.targets[index];
    if (!target) return hide();
    state.chosen = index;
    marked(state.cross, target, state.frame);
    fillTip(tip, target);
    placeTip(tip, target, state.width, picture);
    if (spoken) page.announce(inWords(target));
    onTarget?.(target, spoken);
    return undefined;
  }

  picture.addEventListener("pointermove", (event) => {
    const at = place(event, picture, state.width);
    const index = nearest(state.targets, at);
    picture.classList.toggle("can-pick", Boolean(state.targets[index]?.pick));
    if (index < 0) hide();
    else show(index, false);
  });
  picture.addEventListener("pointerleave", () => {
    if (document.activeElement !== picture) hide();
  });
  picture.addEventListener("blur", hide);
  picture.addEventListener("click", (event) => {
    if (picture.dataset.dragged === "yes") return;
    const index = nearest(state.targets, place(event, picture, state.width));
    if (index < 0) return;
    show(index, true);
    state.targets[index].pick?.();
  });
  picture.addEventListener("keydown", (event) => {
    if (keys?.(event, state)) {
      event.preventDefault();
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const last = state.targets.length - 1;
    if (last < 0) return;
    let index = state.chosen;
    if (event.key in KEYS) {
      index = Math.min(last, Math.max(0, index < 0 ? 0 : index + KEYS[event.key]));
    } else if (event.key === "Home") index = 0;
    else if (event.key === "End") index = last;
    else if (event.key === "Escape") return hide();
    else if (event.key === "Enter" && index >= 0) return state.targets[index].pick?.();
    else return;
    event.preventDefault();
    show(index, true);
  });

  const observer = new ResizeObserver(() => {
    if (Math.round(box.clientWidth) !== state.width) later();
  });
  observer.observe(box);
  watchTheme(later);
  return {
    box,
    picture,
    redraw: later,
    now: redraw,
    show,
    state,
    label(text, hinted = "Arrow keys move through the values.") {
      picture.setAttribute("aria-label", text);
      hint.textContent = hinted;
    },
  };
}

const watchers = new Set();

/** Call back when the page turns light or dark. */
function watchTheme(callback) {
  watchers.add(callback);
  if (watchers.size > 1) return;
  const all = () => watchers.forEach((each) => each());
  new MutationObserver(all).observe(document.documentElement, {
    attributes: true,
    attributeFilter: ["data-theme", "class"],
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", all);
}

function place(event, picture, width) {
  const box = picture.getBoundingClientRect();
  const zoom = width / (box.width || 1);
  return [(event.clientX - box.left) * zoom, (event.clientY - box.top) * zoom];
}

/** Return which target is nearest to a point, if any is near. */
function nearest(targets, [x, y]) {
  let best = -1;
  let least = REACH;
  targets.forEach((each, index) => {
    const across = Math.max(each.x - x, 0, x - each.x - (each.w ?? 0));
    const up = Math.max(each.y - y, 0, y - each.y - (each.h ?? 0));
    const far = Math.hypot(across, up) + (each.bias ?? 0);
    if (far < least) [best, least] = [index, far];
  });
  return best;
}

function marked(group, target, frame) {
  group.replaceChildren();
  const ink = frame.colour("ink");
  if (target.cross) {
    const [top, bottom] = target.cross;
    group.append(
      svg("line", {
        x1: target.at[0],
        x2: target.at[0],
        y1: top,
        y2: bottom,
        stroke: ink,
        "stroke-dasharray": "3 3",
        opacity: 0.6,
      }),
    );
  }
  for (const [x, y, colour] of target.dots ?? []) {
    group.append(
      svg("circle", {
        cx: x,
        cy: y,
        r: 4,
        fill: frame.colour(colour),
        stroke: frame.colour("panel"),
      }),
    );
  }
  if (target.box) {
    const [x, y, w, h] = target.box;
    group.append(
      svg("rect", { x, y, width: w, height: h, fill: "none", stroke: ink, "stroke-width": 2 }),
    );
  }
}

function fillTip(tip, target) {
  tip.replaceChildren(html("strong", {}, target.title));
  for (const line of target.lines ?? []) {
    if (Array.isArray(line)) {
      tip.append(html("span", { class: "tip-row" }, html("span", {}, line[0]), ` ${line[1]}`));
    } else tip.append(html("span", { class: "tip-row" }, line));
  }
  tip.hidden = false;
}

function placeTip(tip, target, width, picture) {
  const zoom = picture.clientWidth / (width || 1) || 1;
  const [x, y] = target.at.map((each) => each * zoom);
  const [wide, tall] = [tip.offsetWidth, tip.offsetHeight];
  const whole = width * zoom;
  const fits = x + 14 + wide <= whole || x - 14 - wide >= 0;
  const left = x + 14 + wide > whole ? x - 14 - wide : x + 14;
  tip.style.left = `${Math.max(0, Math.min(fits ? left : x - wide / 2, whole - wide))}px`;
  // Where there is no room beside, it stands above, so that the finger's target stays in sight.
  const beside = Math.max(0, Math.min(y - tall / 2, picture.clientHeight - tall));
  tip.style.top = `${fits ? beside : y - tall - 26}px`;
}

function inWords(target) {
  const lines = (target.lines ?? []).map((each) => (Array.isArray(each) ? each.join(" ") : each));
  return [target.title, ...lines].join(", ");
}

/** What a picture is drawn with. */
export class Frame {
  #styles = getComputedStyle(document.documentElement);
  #colours = new Map();
  #patterns = new Map();
  #defs;

  constructor(picture, width, height, page, targets) {
    Object.assign(this, { picture, width, height, page, targets, narrow: width < NARROW });
    this.format = page.format;
    this.#defs = this.add("defs");
  }

  /** Return a colour of the theme by its name: "ink", "c1", …; "#123456" is itself. */
  colour(name) {
    if (name.startsWith("#")) return name;
    if (!this.#colours.has(name)) {
      this.#colours.set(name, this.#styles.getPropertyValue(`--${name}`).trim() || "#888888");
    }
    return this.#colours.get(name);
  }

  /** Return the ink that is read best on a colour. */
  inkOn(name) {
    const hex = this.colour(name);
    const part = (at) => (parseInt(hex.slice(at, at + 2), 16) / 255) ** 2.2;
    const light = 0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5);
    return light > 0.21 ? "#111111" : "#ffffff";
  }

  add(name, attributes, ...children) {
    const node = svg(name, attributes, ...children);
    this.picture.append(node);
    return node;
  }

  text(x, y, text, attributes = {}) {
    return this.add("text", { x, y, fill: this.colour("ink"), ...attributes }, text);
  }

  /** Return the fill of a hatched area: what goes on behind something else, or nothing at all. */
  hatch(name) {
    const colour = this.colour(name);
    if (!this.#patterns.has(colour)) {
      const id = unique("hatch");
      this.#defs.append(
        svg(
          "pattern",
          {
            id,
            width: 6,
            height: 6,
            patternUnits: "userSpaceOnUse",
            patternTransform: "rotate(45)",
          },
          svg("rect", { width: 6, height: 6, fill: colour, opacity: 0.14 }),
          svg("rect", { width: 2, height: 6, fill: colour, opacity: 0.85 }),
        ),
      );
      this.#patterns.set(colour, `url(#${id})`);
    }
    return this.#patterns.get(colour);
  }

  /** Return the name of a region that drawing is cut at. */
  clip(x, y, width, height) {
    const id = unique("clip");
    this.#defs.append(svg("clipPath", { id }, svg("rect", { x, y, width, height })));
    return `url(#${id})`;
  }

  /** Return the name of an arrow head. */
  arrow(colour) {
    const id = unique("arrow");
    this.#defs.append(
      svg(
        "marker",
        {
          id,
          viewBox: "0 0 8 8",
          refX: 7,
          refY: 4,
          markerWidth: 6,
          markerHeight: 6,
          orient: "auto-start-reverse",
        },
        svg("path", { d: "M0 0L8 4L0 8z", fill: colour }),
      ),
    );
    return `url(#${id})`;
  }

  /** Draw a legend from the left top, wrapped; return the height that it takes. */
  legend(items, left = 0, top = 0, width = this.width) {
    let x = left;
    let y = top + 9;
    for (const item of items) {
      const wide = textWidth(item.name, 12) + 34;
      if (x > left && x + wide > left + width) [x, y] = [left, y + 18];
      this.#swatch(item, x, y);
      this.text(x + 20, y + 4, item.name, { fill: this.colour("muted") });
      x += wide;
    }
    return items.length ? y - top + 15 : 0;
  }

  #swatch(item, x, y) {
    const colour = this.colour(item.colour);
    if (item.line) {
      this.add("line", {
        x1: x,
        x2: x + 15,
        y1: y,
        y2: y,
        stroke: colour,
        "stroke-width": item.line === true ? 2 : item.line,
        "stroke-dasharray": item.dash ?? null,
      });
    } else if (item.shape) {
      this.add("path", { d: MARKS[item.shape](x + 7, y, 5), fill: colour });
    } else if (item.ring) {
      this.add("circle", { cx: x + 7, cy: y, r: 4, fill: "none", stroke: colour });
    } else {
      this.add("rect", {
        x,
        y: y - 6,
        width: 14,
        height: 12,
        fill: item.hatched ? this.hatch(colour) : colour,
        stroke: item.edge ? this.colour("ink") : colour,
        "stroke-width": item.edge ? 1.5 : 1,
        opacity: item.opacity ?? null,
      });
    }
  }

  /** Draw a horizontal axis at the bottom of the area with its ticks and grid. */
  axisX(scale, area, { form, label = "", base = 10, count = null, grid = true }) {
    const room = this.narrow ? 56 : 84;
    const ticks = scale.ticks(count ?? Math.max(3, Math.floor(area.w / room)), base);
    let free = -Infinity;
    for (const value of ticks) {
      const x = scale(value);
      const text = form(value);
      const half = textWidth(text, 11) / 2;
      if (grid) this.#line(x, area.y, x, area.y + area.h);
      const at = Math.min(Math.max(x, area.x + half - 20), this.width - half - 1);
      if (at - half < free) continue;
      free = at + half + 6;
      this.text(at, area.y + area.h + 15, text, this.#tick("middle"));
    }
    this.#line(area.x, area.y + area.h, area.x + area.w, area.y + area.h, "muted");
    if (label) {
      this.text(area.x + area.w / 2, area.y + area.h + 32, label, this.#name("middle"));
    }
  }

  /** Draw a vertical axis at the left of the area with its ticks and grid. */
  axisY(scale, area, { form, label = "", base = 10, count = null }) {
    const ticks = scale.ticks(count ?? Math.max(2, Math.floor(area.h / 38)), base);
    for (const value of ticks) {
      const y = scale(value);
      this.#line(area.x, y, area.x + area.w, y);
      this.text(area.x - 6, y + 4, form(value), this.#tick("end"));
    }
    if (label) this.text(0, area.y - 10, fitted(label, this.width - 4), this.#name("start"));
  }

  #line(x1, y1, x2, y2, colour = "line") {
    this.add("line", { x1, y1, x2, y2, stroke: this.colour(colour), "stroke-width": 1 });
  }

  #tick(anchor) {
    return { "text-anchor": anchor, fill: this.colour("muted"), "font-size": 11 };
  }

  #name(anchor) {
    return { "text-anchor": anchor, fill: this.colour("muted"), "font-size": 12 };
  }
}

/** Return a figure that draws what it is given last: `set(data)`, with its summary as its label. */
export function filled(root, page, about, draw) {
  let data = null;
  const made = figure(root, page, {
    ...about,
    draw(frame) {
      if (data) draw(frame, data);
    },
  });
  return {
    ...made,
    set(next) {
      data = next;
      made.label(next.summary, next.hint);
      made.redraw();
    },
  };
}
