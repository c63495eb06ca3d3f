// Stacked bars side by side, one slot a value; what cannot be is a hatched slot with its reason.

import { fitted, textWidth } from "./dom.js";
import { filled } from "./figure.js";
import { fromZero, linear } from "./scales.js";

/**
 * Return stacked bars in `root`; `set(data)` draws. Data:
 * y: {form, label, base}; legend; bars: [{name, segments: [{name, value, colour, hatched, edge}],
 * beside: segments of a thinner bar, total, current, faded, reason (of an empty slot), note,
 * title, lines, pick}]; mark: {index, name}; x: {label}; summary.
 */
export function bars(root, page, { height, name }) {
  return filled(root, page, { height, name }, drawn);
}

/** Return where slots are, for charts that stand under one another. */
export function slots(frame, count, left) {
  const right = 10;
  const wide = (frame.width - left - right) / Math.max(1, count);
  return { left, wide, centre: (index) => left + wide * (index + 0.5) };
}

function drawn(frame, data) {
  const noted = data.bars.some((bar) => bar.note);
  const top = frame.legend(data.legend ?? []) + (noted ? 34 : 24);
  const left = data.left ?? (frame.narrow ? 60 : 66);
  const place = slots(frame, data.bars.length, left);
  const area = { x: left, y: top, w: frame.width - left - 10, h: frame.height - top - 42 };
  const totals = data.bars.flatMap((bar) => [sum(bar.segments), sum(bar.beside)]);
  const y = linear(fromZero([...totals, data.least ?? 0], noted ? 1.18 : 1.1), [area.y + area.h, area.y]);
  frame.axisY(y, area, data.y);
  data.bars.forEach((bar, index) => drawBar(frame, bar, index, { place, area, y, data }));
  frame.add("line", {
    x1: area.x,
    x2: area.x + area.w,
    y1: area.y + area.h,
    y2: area.y + area.h,
    stroke: frame.colour("muted"),
  });
  if (data.mark && data.mark.index >= 0) drawMark(frame, data.mark, place, area);
  frame.text(area.x + area.w / 2, area.y + area.h + 36, data.x.label, {
    "text-anchor": "middle",
    fill: frame.colour("muted"),
  });
  frame.targets(
    data.bars.map((bar, index) => ({
      x: place.left + place.wide * index,
      y: area.y,
      w: place.wide,
      h: area.h + 20,
      at: [place.centre(index), y(Math.max(sum(bar.segments), 0))],
      box: [place.left + place.wide * index + 2, area.y, place.wide - 4, area.h],
      title: bar.title,
      lines: bar.lines,
      pick: bar.pick,
    })),
  );
}

function sum(segments) {
  return (segments ?? []).reduce((total, each) => total + Math.max(0, each.value || 0), 0);
}

function drawBar(frame, bar, index, { place, area, y, data }) {
  const centre = place.centre(index);
  const base = area.y + area.h;
  const most = place.wide * 0.76;
  if (bar.current) {
    frame.add("rect", {
      x: centre - place.wide / 2 + 1,
      y: area.y,
      width: place.wide - 2,
      height: area.h + 20,
      fill: frame.colour("accent"),
      opacity: 0.1,
    });
  }
  frame.text(centre, base + 15, fitted(bar.name, place.wide + 6, 12), {
    "text-anchor": "middle",
    "font-weight": bar.current ? 700 : 400,
  });
  if (!bar.segments) {
    frame.add("rect", {
      x: centre - most / 2,
      y: area.y + area.h * 0.25,
      width: most,
      height: area.h * 0.75,
      fill: frame.hatch("line"),
      stroke: frame.colour("line"),
    });
    frame.text(centre, base - 8, textWidth("impossible", 11) <= place.wide ? "impossible" : "–", {
      "text-anchor": "middle",
      "font-size": 11,
      fill: frame.colour("muted"),
    });
    return;
  }
  const pair = Boolean(data.pairs);
  const wide = pair ? Math.min(most * 0.66, 64) : Math.min(most, 84);
  const thin = pair ? Math.min(most * 0.28, 24) : 0;
  const start = centre - (wide + (pair ? thin + 3 : 0)) / 2;
  stack(frame, bar.segments, { x: start, wide, base, y, faded: bar.faded });
  if (pair) stack(frame, bar.beside ?? [], { x: start + wide + 3, wide: thin, base, y });
  const tall = y(sum(bar.segments));
  const size = frame.narrow ? 10 : 11;
  if (bar.total && (bar.current || textWidth(bar.total, size) <= place.wide - 4)) {
    frame.text(centre, tall - 5, bar.total, {
      "text-anchor": "middle",
      "font-size": size,
      "font-weight": 600,
    });
  }
  if (bar.note && place.wide > 60) {
    frame.text(centre, tall - 18, fitted(bar.note, place.wide, 10), {
      "text-anchor": "middle",
      "font-size": 10,
      fill: frame.colour("bad"),
    });
  }
}

function stack(frame, segments, { x, wide, base, y, faded }) {
  let at = 0;
  for (const each of segments) {
    const value = Math.max(0, each.value || 0);
    if (!value) continue;
    const top = y(at + value);
    const tall = y(at) - top;
    at += value;
    frame.add("rect", {
      x,
      y: top,
      width: wide,
      height: Math.max(0.5, tall),
      fill: each.hatched ? frame.hatch(each.colour) : frame.colour(each.colour),
      stroke: each.edge ? frame.colour("ink") : frame.colour("panel"),
      "stroke-width": 1,
      opacity: faded ? 0.5 : null,
    });
    if (tall > 15 && wide > 44 && each.text && !each.hatched) {
      frame.text(x + wide / 2, top + tall / 2 + 4, fitted(each.text, wide - 6, 11), {
        "text-anchor": "middle",
        "font-size": 11,
        fill: faded ? frame.colour("ink") : frame.inkOn(each.colour),
      });
    }
  }
}

/** Mark a slot from which on something holds. */
function drawMark(frame, mark, place, area) {
  const x = place.left + place.wide * mark.index;
  frame.add("line", {
    x1: x,
    x2: x,
    y1: area.y - 6,
    y2: area.y + area.h,
    stroke: frame.colour("warn"),
    "stroke-width": 1.5,
    "stroke-dasharray": "6 4",
  });
  const wide = textWidth(mark.name, 11);
  const late = x + wide + 8 > frame.width;
  frame.text(late ? x : Math.max(x, 118), area.y - 9, `${mark.name}${late ? " ▸" : ""}`, {
    "text-anchor": late ? "end" : "start",
    "font-size": 11,
    fill: frame.colour("warn"),
    stroke: frame.colour("panel"),
    "stroke-width": 3,
    "paint-order": "stroke",
  });
}
