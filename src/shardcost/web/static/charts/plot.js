// Quantities against each other: lines labelled at their ends, bands, marks with labels, rules.

import { fitted, svg, textWidth } from "./dom.js";
import { filled } from "./figure.js";
import { MARKS } from "./marks.js";
import { apart, linear, logarithmic } from "./scales.js";

const LABEL = 14;
/**
 * Return a plot in `root`; `set(data)` draws. Data:
 * x, y: {kind: "linear"|"log", domain, form, label, base, count};
 * series: [{name, colour, dash, width, points: [[x, y]…], labelled}];
 * bands: [{colour, low: [[x, y]…], high}]; rules: [{x | y, name, colour}];
 * marks: [{x, y, r, shape, colour, open, name, ringed, title, lines, pick}];
 * legend, targets (columns to point at: {x, title, lines, values: [[y, colour]…], pick}), summary.
 */
export function plot(root, page, { height, name, onTarget = null }) {
  return filled(root, page, { height, name, onTarget }, drawn);
}

function drawn(frame, data) {
  const top = frame.legend(data.legend ?? []) + (data.y.label ? 22 : 8);
  const ends = data.series.filter((each) => each.labelled && each.points.length);
  const named = ends.map((each) => (frame.narrow ? each.short ?? each.name : each.name));
  const taken = [];
  const beside = [...named, ...(data.reserve ?? [])].map((each) => textWidth(each, 11) + 20);
  const right = Math.min(frame.width * (frame.narrow ? 0.27 : 0.36), Math.max(12, ...beside));
  const left = data.left ?? (frame.narrow ? 60 : 66);
  const bottom = data.x.label ? 40 : 24;
  const area = { x: left, y: top, w: frame.width - left - right, h: frame.height - top - bottom };
  const x = scaled(data.x, [area.x, area.x + area.w]);
  const y = scaled(data.y, [area.y + area.h, area.y]);
  frame.axisX(x, area, data.x);
  frame.axisY(y, area, data.y);
  const inside = frame.add("g", { "clip-path": frame.clip(area.x, area.y - 1, area.w, area.h + 2) });
  for (const band of data.bands ?? []) inside.append(bandOf(frame, band, x, y));
  const upright = (data.rules ?? []).filter((rule) => rule.x !== undefined).map((rule) => x(rule.x));
  for (const rule of data.rules ?? []) taken.push(...ruled(frame, rule, x, y, area, taken, upright));
  for (const each of data.series) inside.append(lineOf(frame, each, x, y));
  taken.push(...endLabels(frame, ends, named, { x, y, area }));
  const spots = markedPoints(frame, data.marks ?? [], { x, y, area, taken });
  frame.targets([...spots, ...columns(data.targets ?? [], x, y, area)]);
}

function scaled(axis, range) {
  return (axis.kind === "log" ? logarithmic : linear)(axis.domain, range);
}

function path(points, x, y) {
  return points.map(([a, b], index) => `${index ? "L" : "M"}${r(x(a))} ${r(y(b))}`).join("");
}

function r(value) {
  return Math.round(value * 10) / 10;
}

function bandOf(frame, band, x, y) {
  const there = path(band.high, x, y);
  const back = path([...band.low].reverse(), x, y).replace("M", "L");
  return svg("path", { d: `${there}${back}z`, fill: frame.colour(band.colour), opacity: 0.16 });
}

function lineOf(frame, each, x, y) {
  return svg("path", {
    d: path(each.points, x, y),
    fill: "none",
    stroke: frame.colour(each.colour),
    "stroke-width": each.width ?? 1.5,
    "stroke-dasharray": each.dash ?? null,
    "stroke-linejoin": "round",
    opacity: each.opacity ?? null,
  });
}

/** Draw a line across with its name beside it, where there is room beside other names; return where that is. */
function ruled(frame, rule, x, y, area, taken, upright) {
  const free = ([left, up, right, down]) => !taken.some(
    ([a, b, c, d]) => left < c && right > a && up < d && down > b);
  const colour = frame.colour(rule.colour ?? "muted");
  const dash = { stroke: colour, "stroke-dasharray": rule.dash ?? "5 4", "stroke-width": 1.2 };
  if (rule.x !== undefined) {
    const at = x(rule.x);
    if (at < area.x - 1 || at > area.x + area.w + 1) return [];
    frame.add("line", { x1: at, x2: at, y1: area.y, y2: area.y + area.h, ...dash });
    const name = frame.narrow ? rule.short ?? rule.name : rule.name;
    const rooms = [at - area.x, area.x + area.w - at];
    const late = rooms[1] < textWidth(name, 11) + 8 && rooms[0] > rooms[1];
    const text = fitted(name, rooms[late ? 0 : 1] - 6, 11);
    const wide = textWidth(text, 11);
    const box = (up) => (late ? [at - wide - 4, up - 10, at, up + 3] : [at, up - 10, at + wide + 4, up + 3]);
    let up = area.y + 11 + LABEL * (rule.row ?? 0);
    while (!free(box(up)) && up + LABEL < area.y + area.h) up += LABEL;
    frame.text(at + (late ? -4 : 4), up, text, {
      "text-anchor": late ? "end" : "start",
      "font-size": 11,
      fill: colour,
    });
    return [box(up)];
  }
  const at = y(rule.y);
  if (at < area.y - 1 || at > area.y + area.h + 1) return [];
  frame.add("line", { x1: area.x, x2: area.x + area.w, y1: at, y2: at, ...dash });
  const text = fitted(frame.narrow ? rule.short ?? rule.name : rule.name, area.w - 8, 11);
  const up = at > area.y + 14 ? at - 4 : at + 13;
  const wide = textWidth(text, 11) + 8;
  // At the left, unless a line down crosses it there.
  const late = upright.some((each) => each > area.x && each < area.x + wide);
  const start = late ? area.x + area.w - wide : area.x;
  frame.text(start + 4, up, text, { "font-size": 11, fill: colour });
  return [[start, up - 10, start + wide, up + 3]];
}

/** Write the names of lines beside their ends, moved apart, each led to by a thin line. */
function endLabels(frame, ends, named, { x, y, area }) {
  const labels = ends.map((each, index) => {
    const [a, b] = each.points.at(-1);
    const at = Math.min(area.y + area.h, Math.max(area.y, y(b)));
    return { each, text: named[index], from: [x(a), at], at, size: LABEL };
  });
  apart(labels, area.y - 4, area.y + area.h + 4);
  for (const label of labels) {
    const colour = frame.colour(label.each.colour);
    const start = area.x + area.w + 12;
    const [a, b] = label.from;
    frame.add("path", {
      d: `M${r(Math.min(a, area.x + area.w))} ${r(b)}L${start - 2} ${r(label.put)}`,
      stroke: colour,
      fill: "none",
      "stroke-width": 0.8,
      opacity: 0.7,
    });
    frame.text(start, label.put + 4, fitted(label.text, frame.width - start, 11), {
      "font-size": 11,
      fill: frame.colour("ink"), // the line that leads to it has the colour; text needs contrast
      "font-weight": label.each.width > 2 ? 700 : 400,
    });
  }
  const start = area.x + area.w + 8;
  return labels.map((label) => [start, label.put - 8, frame.width, label.put + 6]);
}

function markedPoints(frame, marks, { x, y, area, taken }) {
  const spots = marks.map((mark) => {
    const at = [x(mark.x), y(mark.y)];
    const size = mark.r ?? 4.5;
    taken.push([at[0] - size, at[1] - size, at[0] + size, at[1] + size]);
    return { mark, at, size };
  });
  for (const { mark, at, size } of spots) drawMark(frame, mark, at, size);
  for (const { mark, at, size } of spots) {
    if (mark.name) nameMark(frame, mark, at, size, taken, area);
  }
  return spots
    .filter(({ mark }) => mark.title)
    .map(({ mark, at, size }) => ({
      x: at[0] - size,
      y: at[1] - size,
      w: 2 * size,
      h: 2 * size,
      at,
      box: [at[0] - size - 4, at[1] - size - 4, 2 * size + 8, 2 * size + 8],
      title: mark.title,
      lines: mark.lines,
      pick: mark.pick,
      mark,
    }));
}

function drawMark(frame, mark, [x, y], size) {
  if (mark.ringed) {
    frame.add("circle", {
      cx: x,
      cy: y,
      r: size + 5,
      fill: "none",
      stroke: frame.colour("ink"),
      "stroke-width": 1.8,
    });
  }
  const colour = frame.colour(mark.colour);
  frame.add("path", {
    d: MARKS[mark.shape ?? "circle"](r(x), r(y), size),
    fill: mark.open ? "none" : colour,
    stroke: mark.open ? colour : frame.colour("panel"),
    "stroke-width": mark.open ? 1.3 : 1,
    opacity: mark.opacity ?? null,
  });
}

/** Write a name where it hits nothing; leave it to the tooltip where there is no such place. */
function nameMark(frame, mark, [x, y], size, taken, area) {
  const wide = textWidth(mark.name, 11);
  const gap = size + (mark.ringed ? 9 : 4);
  const above = [x - wide / 2, y - gap - 3];
  const tries = [
    ...(mark.side === "above" ? [above] : []),
    [x + gap, y + 4],
    [x - gap - wide, y + 4],
    above,
    [x - wide / 2, y + gap + 10],
    [x + gap, y - gap],
    [x - gap - wide, y - gap],
    [x + gap, y + gap + 8],
    [x - gap - wide, y + gap + 8],
  ];
  for (const [a, b] of tries) {
    const box = [a - 2, b - 10, a + wide + 2, b + 3];
    if (box[0] < area.x || box[2] > frame.width - 2 || box[1] < area.y - 8) continue;
    if (box[3] > area.y + area.h) continue;
    if (taken.some((other) => hits(box, other))) continue;
    taken.push(box);
    frame.text(a, b, mark.name, {
      "font-size": 11,
      "font-weight": mark.ringed ? 700 : 400,
      stroke: frame.colour("panel"),
      "stroke-width": 3,
      "paint-order": "stroke",
    });
    return;
  }
}

function hits(a, b) {
  return a[0] < b[2] && b[0] < a[2] && a[1] < b[3] && b[1] < a[3];
}

function columns(targets, x, y, area) {
  const places = targets.map((each) => x(each.x));
  return targets.map((each, index) => {
    const from = index ? (places[index - 1] + places[index]) / 2 : places[index] - 8;
    const to = index + 1 < places.length ? (places[index] + places[index + 1]) / 2 : places[index] + 8;
    const values = each.values ?? [];
    return {
      x: from,
      y: area.y,
      w: to - from,
      h: area.h,
      bias: 9,
      at: [places[index], values.length ? y(values[0][0]) : area.y + area.h / 2],
      cross: [area.y, area.y + area.h],
      dots: values.map(([value, colour]) => [places[index], y(value), colour]),
      title: each.title,
      lines: each.lines,
      pick: each.pick,
      data: each.data,
    };
  });
}
