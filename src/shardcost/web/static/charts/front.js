// The Pareto front of a search: what one figure costs of the other; the best is ringed.

import { html } from "./dom.js";
import { SHAPES } from "./marks.js";
import { plot } from "./plot.js";
import { around, fromZero } from "./scales.js";

const FAR = 8;
const COLOURS = ["c1", "c2", "c3", "c4", "c5", "c6", "c7"];

/** Draw the front of a plan's result; `onPick(candidate)` is called by click or Enter. */
export function frontChart(root, page, result, onPick) {
  root.replaceChildren();
  const front = result?.front ?? [];
  if (!front.length) {
    root.append(html("p", { class: "panel-empty" }, "No layout is feasible, so there is no front."));
    return null;
  }
  const best = result.best?.[0] ?? null;
  const axes = axesOf(front, page.format);
  const chart = plot(root, page, { height: 320, name: "front" });
  const colour = (index) => COLOURS[index % COLOURS.length];
  const places = [...new Set(front.map(placeOf))];
  const sorted = [...front].sort((a, b) => axes.x.of(a) - axes.x.of(b));
  const several = new Set(front.map((each) => each.batch)).size > 1;
  chart.set({
    x: axes.x,
    y: axes.y,
    legend: [
      ...(places.length > 1
        ? places.map((name, index) => ({ name, colour: colour(index), line: true }))
        : []),
      { name: `best by ${result.unit ?? result.objective}`, colour: "ink", ring: true },
    ],
    series: places.map((name, index) => ({
      name,
      colour: colour(index),
      points: sorted
        .filter((each) => placeOf(each) === name)
        .map((each) => [axes.x.of(each), axes.y.of(each)]),
      dash: index ? "6 3" : null,
    })),
    marks: sorted.map((each) => markOf(each)),
    summary:
      `Pareto front of ${front.length} layouts: ${axes.x.label} against ${axes.y.label}` +
      (best ? `; the best is ${nameOf(best)}.` : "."),
    hint: "Arrow keys move through the layouts, Enter loads one.",
  });

  function nameOf(each) {
    const degrees = page.format.layoutShort(each.layout);
    return several ? `${degrees}, batch ${each.batch}` : degrees;
  }

  function markOf(each) {
    const index = places.indexOf(placeOf(each));
    const lines = [
      [axes.x.label, axes.x.form(axes.x.of(each))],
      [axes.y.label, axes.y.form(axes.y.of(each))],
      ["GPUs", String(each.gpus)],
      ["memory", page.format.bytes(each.memory_bytes)],
    ];
    const extras = page.format.layoutExtras(each.layout);
    if (extras) lines.push(extras);
    return {
      x: axes.x.of(each),
      y: axes.y.of(each),
      r: 5,
      shape: SHAPES[index % SHAPES.length],
      colour: colour(index),
      name: nameOf(each),
      ringed: best !== null && same(each, best),
      title: places.length > 1 ? `${nameOf(each)}, ${placeOf(each)}` : nameOf(each),
      lines: onPick ? [...lines, "click or Enter loads it"] : lines,
      pick: onPick ? () => onPick(each) : null,
    };
  }
  return chart;
}

function placeOf(each) {
  return [each.model, "on", each.cluster, each.network].filter(Boolean).join(" ");
}

function same(a, b) {
  const key = (each) => JSON.stringify([each.layout, each.batch, placeOf(each), each.software]);
  return key(a) === key(b);
}

function axesOf(front, format) {
  const first = front[0];
  const axis = (label, of, form, extra = {}) => {
    const values = front.map(of);
    return { label, of, form, ...spanOf(values), ...extra };
  };
  const perGpu = axis("tokens/s/GPU", (each) => each.tokens_per_s_per_gpu, format.rate);
  if (first.tokens_per_s_per_user !== undefined) {
    return {
      x: axis("tokens/s of one user", (each) => each.tokens_per_s_per_user, format.rate),
      y: perGpu,
    };
  }
  if (first.ttft_s !== undefined) {
    return { x: axis("TTFT", (each) => each.time_s, format.time), y: perGpu };
  }
  const step = axis("time of a step", (each) => each.time_s, format.time);
  const several = new Set(front.map((each) => each.gpus)).size > 1;
  return several
    ? { x: step, y: axis("GPUs", (each) => each.gpus, (value) => String(Math.round(value))) }
    : {
        x: step,
        y: axis("memory of the fullest GPU", (each) => each.memory_bytes, format.bytes, { base: 2 }),
      };
}

/** Return the scale: even steps, unless a few layouts far off would press the rest together. */
function spanOf(values) {
  const [low, high] = around(values, 1.06);
  if (low < high / FAR) return { kind: "log", domain: [low, high] };
  return { kind: "linear", domain: low < high / 3 ? fromZero(values, 1.12) : [low, high] };
}
