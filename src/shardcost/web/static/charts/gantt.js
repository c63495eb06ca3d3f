// What runs when: lanes of events, zoomed and panned, with the whole in a strip underneath.

import { fitted, html, textWidth } from "./dom.js";
import { figure } from "./figure.js";
import { linear } from "./scales.js";

const STRIP = 22;
const SLIM = 4;
/** Blocks narrower than this have neither edge nor text. */
const LINE = 13;
/** Pixels of a line of text. */
const DEEPEST = 1e-5;
/** The narrowest window, as a share of the whole. */
const BREAK = 0.07;
/** The width of a break, as a share of what is drawn beside it. */

/**
 * Return a gantt chart in `root`; `set(data)` draws. Data:
 * span, lanes: [{name}], events: [{lane, start, end, name, colour, hatched, edge, opacity, title,
 * lines, pick}] in order of start, gap: {start, end, words} in which nothing is drawn, form, legend,
 * summary. Windows are in the time that is drawn, in which a break is short.
 */
export function gantt(root, page, { height, name }) {
  let data = null;
  let view = [0, 1];
  let left = 0;
  const words = html("span", { class: "gantt-range", role: "status" });
  const button = (id, text, label, act) =>
    html("button", { type: "button", class: `gantt-${id}`, "aria-label": label, on: { click: act } }, text);
  const tools = html(
    "div",
    { class: "chart-tools", role: "group", "aria-label": "zoom of the timeline" },
    button("in", "+", "zoom in", () => zoom(0.5)),
    button("out", "−", "zoom out", () => zoom(2)),
    button("left", "◀", "earlier", () => pan(-0.5)),
    button("right", "▶", "later", () => pan(0.5)),
    button("reset", "whole", "show the whole", () => move(0, data?.axis.end ?? 1)),
    words,
    html("span", { class: "panel-hint gantt-hint" }, "click explains, drag moves, Ctrl + wheel zooms"),
  );
  root.append(tools);
  const made = figure(root, page, {
    height,
    name,
    keys,
    draw(frame) {
      if (data) left = drawn(frame, data, view);
    },
  });
  const { picture, state } = made;

  function move(from, to) {
    if (!data) return;
    const { end } = data.axis;
    const wide = Math.min(end, Math.max(end * DEEPEST, to - from));
    const start = Math.min(Math.max(0, from), end - wide);
    view = [start, start + wide];
    say();
    made.redraw();
  }

  function say() {
    const { axis } = data;
    const whole = view[1] - view[0] > axis.end * 0.9999;
    const [from, to] = view.map((each) => data.form(axis.time(each)));
    words.textContent = whole ? `the whole, ${data.form(data.span)}` : `${from} to ${to} of ${data.form(data.span)}`;
  }

  function zoom(factor, centre = (view[0] + view[1]) / 2) {
    move(centre - (centre - view[0]) * factor, centre + (view[1] - centre) * factor);
  }

  function pan(share) {
    const by = (view[1] - view[0]) * share;
    move(view[0] + by, view[1] + by);
  }

  function timeAt(event) {
    const box = picture.getBoundingClientRect();
    const share = (event.clientX - box.left - left) / (box.width - left - 8);
    return view[0] + Math.min(1, Math.max(0, share)) * (view[1] - view[0]);
  }

  function keys(event) {
    if (!data || event.ctrlKey || event.metaKey || event.altKey) return false;
    const acts = {
      "+": () => zoom(0.5),
      "=": () => zoom(0.5),
      "-": () => zoom(2),
      0: () => move(0, data.axis.end),
    };
    if (event.key in acts) acts[event.key]();
    else if (event.shiftKey && event.key === "ArrowLeft") pan(-0.25);
    else if (event.shiftKey && event.key === "ArrowRight") pan(0.25);
    else return turned(event);
    page.announce(words.textContent);
    return true;
  }

  /** Go to the next window where the last event that is drawn was chosen, and back. */
  function turned(event) {
    const last = state.targets.length - 1;
    if (event.key === "ArrowRight" && state.chosen === last && view[1] < data.axis.end * 0.9999) {
      pan(0.5);
      state.chosen = -1;
      return true;
    }
    if (event.key === "ArrowLeft" && state.chosen === 0 && view[0] > 0) {
      pan(-0.5);
      state.chosen = -1;
      return true;
    }
    return false;
  }

  picture.addEventListener(
    "wheel",
    (event) => {
      if (!data || !(event.ctrlKey || event.metaKey)) return;
      event.preventDefault();
      zoom(event.deltaY > 0 ? 1.25 : 0.8, timeAt(event));
    },
    { passive: false },
  );
  dragging(picture, () => view, move, () => left);
  return {
    ...made,
    tools,
    set(next) {
      const same = data && Math.abs(data.span - next.span) < next.span * 1e-9;
      const axis = axisOf(next.span, next.gap ?? null);
      const events = next.events.map((each) => ({ ...each, start: axis.place(each.start), end: axis.place(each.end) }));
      data = { ...next, axis, events };
      if (!same) view = [0, axis.end];
      say();
      made.label(
        next.summary,
        "Arrow keys move through the events, Enter explains one, plus and minus zoom, shift and arrows pan, " +
          "0 shows the whole.",
      );
      made.redraw();
    },
    view: () => view,
    move,
  };
}

/** Return how times are drawn: as they are, but for a break, which is short. */
function axisOf(span, gap) {
  if (!gap) return { end: span, gap, place: (time) => time, time: (drawn) => drawn };
  const lost = gap.end - gap.start;
  const room = BREAK * (span - lost);
  return {
    end: span - lost + room,
    gap: { ...gap, room },
    place(time) {
      if (time <= gap.start) return time;
      return time >= gap.end ? time - lost + room : gap.start + ((time - gap.start) / lost) * room;
    },
    time(drawn) {
      if (drawn <= gap.start) return drawn;
      return drawn >= gap.start + room ? drawn + lost - room : gap.start + ((drawn - gap.start) / room) * lost;
    },
  };
}

/** Return a scale of real times for the axis of a window: no tick stands in a break. */
function ticked(x, axis, [from, to]) {
  const scale = (time) => x(axis.place(time));
  scale.ticks = (count) => {
    const even = linear([from, to], [0, 1]).ticks(count);
    if (!axis.gap || even.length < 2) return even;
    const step = even[1] - even[0];
    const [first, last] = [axis.time(from), axis.time(to)];
    const found = [];
    for (let at = Math.ceil(first / step - 1e-9); at * step <= last + step * 1e-9; at += 1) {
      const time = at * step;
      if (time <= axis.gap.start || time >= axis.gap.end) found.push(time);
    }
    return found;
  };
  return scale;
}

function dragging(picture, view, move, left) {
  let grip = null;
  picture.addEventListener("pointerdown", (event) => {
    grip = { x: event.clientX, view: view() };
    picture.dataset.dragged = "no";
  });
  picture.addEventListener("pointermove", (event) => {
    if (!grip || !(event.buttons & 1)) return;
    const by = event.clientX - grip.x;
    if (Math.abs(by) < 4 && picture.dataset.dragged !== "yes") return;
    if (picture.dataset.dragged !== "yes") {
      picture.dataset.dragged = "yes";
      picture.setPointerCapture(event.pointerId);
    }
    const [from, to] = grip.view;
    const time = (by / (picture.clientWidth - left() - 8)) * (to - from);
    move(from - time, to - time);
  });
  for (const name of ["pointerup", "pointercancel"]) {
    picture.addEventListener(name, () => {
      grip = null;
    });
  }
}

function drawn(frame, data, [from, to]) {
  const top = frame.legend(data.legend ?? []) + 4;
  const longest = Math.max(...data.lanes.map((lane) => textWidth(lane.name, 11)));
  const left = Math.min(frame.narrow ? 112 : 160, longest + 16);
  const area = { x: left, y: top, w: frame.width - left - 8, h: frame.height - top - 26 - STRIP - 8 };
  const x = linear([from, to], [area.x, area.x + area.w]);
  const each = area.h / data.lanes.length;
  const tall = Math.min(54, each * 0.78);
  const laneY = (lane) => area.y + each * lane + (each - tall) / 2;
  frame.axisX(ticked(x, data.axis, [from, to]), area, { form: data.form });
  if (data.axis.gap) drawBreak(frame, data, x, area);
  data.lanes.forEach((lane, index) => {
    if (each < 11 && index % Math.ceil(11 / each)) return;
    frame.text(area.x - 8, area.y + each * (index + 0.5) + 4, fitted(lane.name, left - 12, 11), {
      "text-anchor": "end",
      "font-size": 11,
    });
  });
  const slim = new Slim(frame);
  const targets = [];
  const reached = data.lanes.map(() => -1);
  for (const event of data.events) {
    if (event.end < from || event.start > to) continue;
    const start = Math.max(area.x, x(event.start));
    const end = Math.min(area.x + area.w, x(event.end));
    const wide = end - start;
    if (wide < 0.6 && end <= reached[event.lane] + 0.6) continue;
    reached[event.lane] = Math.max(reached[event.lane], end);
    const y = laneY(event.lane);
    if (wide < SLIM) slim.put(event, start, y, Math.max(0.6, wide), tall);
    else block(frame, event, { x: start, y, w: wide, h: tall });
    targets.push({
      x: start,
      y,
      w: wide,
      h: tall,
      at: [(start + end) / 2, y + tall / 2],
      box: [start, y, Math.max(1.5, wide), tall],
      title: event.title,
      lines: event.lines,
      pick: event.pick,
      event,
    });
  }
  slim.draw();
  strip(frame, data, [from, to], { x: area.x, y: frame.height - STRIP, w: area.w });
  frame.targets(targets);
  return left;
}

/** Draw where nothing is drawn, and say what is left out there. */
function drawBreak(frame, { axis, form }, x, area) {
  const { gap } = axis;
  const start = Math.max(area.x, x(gap.start));
  const end = Math.min(area.x + area.w, x(gap.start + gap.room));
  if (end - start < 2) return;
  frame.add("rect", { x: start, y: area.y, width: end - start, height: area.h, fill: frame.colour("ground") });
  for (const at of [start, end]) {
    frame.add("line", {
      x1: at, x2: at, y1: area.y, y2: area.y + area.h, stroke: frame.colour("muted"), "stroke-dasharray": "5 4",
    });
  }
  const [middle, half] = [(start + end) / 2, area.y + area.h / 2];
  const words = fitted(`${gap.words} ${form(gap.end - gap.start)}`, area.h - 8, 12);
  frame.text(middle, half + 4, words, {
    "text-anchor": "middle", class: "gantt-break", transform: `rotate(-90 ${middle} ${half})`,
  });
}

/** Many narrow blocks, drawn as one shape for each look: thousands of them stay quick to redraw. */
class Slim {
  #looks = new Map();

  constructor(frame) {
    this.frame = frame;
  }

  put(event, x, y, w, h, faded = null) {
    const { frame } = this;
    const fill = event.hatched && !faded ? frame.hatch(event.colour) : frame.colour(event.colour);
    const opacity = faded ?? event.opacity ?? 1;
    const key = `${fill}|${opacity}`;
    if (!this.#looks.has(key)) this.#looks.set(key, { fill, opacity, d: [] });
    const [a, b, wide, tall] = [x, y, w, h].map((each) => each.toFixed(1));
    this.#looks.get(key).d.push(`M${a} ${b}h${wide}v${tall}h-${wide}z`);
  }

  draw() {
    for (const { fill, opacity, d } of this.#looks.values()) {
      this.frame.add("path", { d: d.join(""), fill, opacity });
    }
  }
}

function block(frame, event, { x, y, w, h }) {
  const gap = w > 3 ? 0.5 : 0;
  frame.add("rect", {
    x: x + gap,
    y,
    width: w - 2 * gap,
    height: h,
    rx: w > 8 ? 2 : 0,
    fill: event.hatched ? frame.hatch(event.colour) : frame.colour(event.colour),
    opacity: event.opacity ?? null,
    stroke: event.edge && w > 3 ? frame.colour("ink") : null,
    "stroke-width": event.edge ? 1.4 : null,
  });
  if (w < 18 || h < 11) return;
  const lines = broken(event.short ?? event.name, w - 6, Math.floor(h / LINE));
  lines.forEach((text, index) => {
    frame.text(x + w / 2, y + h / 2 + 4 + LINE * (index - (lines.length - 1) / 2), text, {
      "text-anchor": "middle",
      "font-size": 11,
      fill: event.hatched ? frame.colour("ink") : frame.inkOn(event.colour),
      stroke: event.hatched ? frame.colour("panel") : null,
      "stroke-width": event.hatched ? 3 : null,
      "paint-order": "stroke",
      "pointer-events": "none",
    });
  });
}

/** Return a name in one line or two of a width; none where it does not fit: the tip has it. */
function broken(name, width, most) {
  const wide = (text) => textWidth(text, 11);
  if (wide(name) <= width) return [name];
  const words = name.split(" ");
  const pairs = words.slice(1).map((_, index) => [
    words.slice(0, index + 1).join(" "), words.slice(index + 1).join(" "),
  ]);
  const widest = (pair) => Math.max(...pair.map(wide));
  const best = pairs.sort((a, b) => widest(a) - widest(b))[0];
  return most > 1 && best && widest(best) <= width ? best : [];
}

/** Draw the whole in small, with the window that is shown. */
function strip(frame, data, [from, to], { x, y, w }) {
  const scale = linear([0, data.axis.end], [x, x + w]);
  const each = (STRIP - 4) / data.lanes.length;
  const reached = data.lanes.map(() => -1);
  const slim = new Slim(frame);
  frame.add("rect", { x, y, width: w, height: STRIP - 2, fill: frame.colour("ground") });
  for (const event of data.events) {
    const start = scale(event.start);
    const end = scale(event.end);
    if (end <= reached[event.lane] + 0.7) continue;
    reached[event.lane] = end;
    const tall = Math.max(1, each * 0.8);
    slim.put(
      event,
      start,
      y + 1 + each * event.lane,
      Math.max(0.7, end - start),
      tall,
      event.hatched ? 0.35 : 0.9,
    );
  }
  slim.draw();
  frame.add("rect", {
    x: scale(from),
    y: y - 1,
    width: Math.max(3, scale(to) - scale(from)),
    height: STRIP,
    fill: "none",
    stroke: frame.colour("ink"),
    "stroke-width": 1.5,
  });
}
