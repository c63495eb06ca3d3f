// @ts-check
// Two answers beside each other: figures, parts of the time, memory, limits and timelines, with the
// differences. The second is compared with the first.

import { post } from "./api.js";
import { h } from "./dom.js";
import * as format from "./format.js";
import { partColour } from "./headline.js";

/** @typedef {{name: string, short: string, found: any, limits?: any[]}} Side an answer, what it is called, its limits */

const TRIFLE = 1e-9; // of the time: rounding, not a part
const MANY = 10; // times as much: said so, not in per cent
/** The time of each phase: what it is called, and its figure. @type {Record<string, [string, string]>} */
const TIMES = { train: ["step", "time_s"], prefill: ["TTFT", "ttft_s"], decode: ["TPOT", "tpot_s"] };
/** @type {Array<[string, string, (value: number) => string, boolean]>} name, key, form, more is better */
const FIGURES = [
  ["tokens/s", "tokens_per_s", format.rate, true],
  ["tokens/s/GPU", "tokens_per_s_per_gpu", format.rate, true],
  ["tokens/s/user", "tokens_per_s_per_user", format.rate, true],
  ["MFU", "mfu", format.percent, true],
];

/** Return the time that counts in the phase of an answer. @param {any} found */
export const timeOf = (found) => found[TIMES[found.workload.phase][1]] ?? found.time_s;

/**
 * Return by how much a value differs from another, in its unit and in per cent.
 * @param {number} from
 * @param {number} to
 * @param {(value: number) => string} form
 */
export function difference(from, to, form) {
  const change = to - from;
  if (Math.abs(change) <= TRIFLE * Math.max(Math.abs(from), Math.abs(to))) return "the same";
  const sign = change > 0 ? "+" : "-";
  if (form === format.percent) return `${sign}${format.fixed(Math.abs(100 * change), 1)} points`;
  const share = !from ? "" : to > MANY * from ? `, ${format.whole(to / from)}x`
    : `, ${sign}${format.fixed(Math.abs((100 * change) / from), 1)} %`;
  return `${sign}${form(Math.abs(change))}${share}`;
}

/** Class of a difference: better or worse. @param {number} from @param {number} to @param {boolean} more */
export function judged(from, to, more) {
  if (Math.abs(to - from) <= 1e-3 * Math.abs(from)) return "";
  return to > from === more ? "better" : "worse";
}

/**
 * Return two answers beside each other.
 * @param {[Side, Side]} sides
 * @returns {HTMLElement}
 */
export function comparison(sides) {
  const short = sides.map((each) => each.short);
  return h("div", { class: "comparison" },
    tableOf(short, "Figures", "figure", figures(sides)),
    h("div", { class: "comparison-bars" },
      h("div", { class: "block" }, bars(sides, "Where the time goes", timeParts), tableOf(short, "Parts of a step", "part", rowsOf(sides, timeParts))),
      h("div", { class: "block" }, bars(sides, "Memory of the fullest GPU", memoryParts), tableOf(short, "Memory", "kind", rowsOf(sides, memoryParts)))));
}

/** @typedef {{name: any, cells: string[], lost: string, kind: string}} Row */

/** @param {[Side, Side]} sides @returns {Row[]} */
function figures(sides) {
  const [one, two] = sides.map(({ found }) => found);
  const [name] = TIMES[two.workload.phase];
  const rows = [row(name, timeOf(one), timeOf(two), format.time, false)];
  rows[0].cells = sides.map(({ found }) => `${format.time(timeOf(found))} (${ends(found)})`);
  for (const [label, key, form, more] of FIGURES) {
    if (Number.isFinite(one[key]) && Number.isFinite(two[key])) rows.push(row(label, one[key], two[key], form, more));
  }
  rows.push(row("communication", one.comm.share, two.comm.share, format.percent, false));
  rows.push(row("GPUs", one.gpus, two.gpus, format.whole, false));
  return [...rows, ...limitRows(sides)];
}

/** @param {any} found */
function ends(found) {
  const [, figure] = TIMES[found.workload.phase];
  const { low, high } = found.intervals?.[figure] ?? { low: found.low_s, high: found.high_s };
  return format.ends(low, high);
}

/** @param {any} name @param {number} one @param {number} two @param {(value: number) => string} form @param {boolean} more @returns {Row} */
function row(name, one, two, form, more) {
  return { name, cells: [form(one), form(two)], lost: difference(one, two, form), kind: judged(one, two, more) };
}

/** How often each keeps the limits that are set. @param {[Side, Side]} sides @returns {Row[]} */
function limitRows(sides) {
  const [one, two] = sides.map(({ limits }) => limits ?? []);
  return one.filter((each) => two.some(({ limit }) => limit === each.limit)).map((each) => {
    const other = two.find(({ limit }) => limit === each.limit);
    return {
      name: `${each.words} holds in`, cells: [each, other].map(cases), lost: "",
      kind: judged(each.holds_share, other.holds_share, true),
    };
  });
}

/** Return in how many cases a limit is kept: 9 of 10. @param {any} each */
export const cases = (/** @type {any} */ { holds_share: share }) => `${Math.round(10 * share)} of 10`;

/** Return a limit with how surely it is kept. @param {any} each */
export const heldLimit = (each) => `${each.words}: holds in ${cases(each)} cases`;

// ---------------------------------------------------------------------------------- the bars

/** Parts of the time: class, key, value. @param {any} found @returns {Array<[string, string, number]>} */
const timeParts = (found) => Object.entries(found.parts)
  .filter(([, seconds]) => Math.abs(/** @type {number} */ (seconds)) > TRIFLE * found.time_s)
  .map(([part, seconds]) => [partColour(part), part, /** @type {number} */ (seconds)]);

/** Kinds of memory. @param {any} found @returns {Array<[string, string, number]>} */
const memoryParts = (found) => Object.entries(found.memory.by_kind)
  .filter(([, size]) => /** @type {number} */ (size) > 0)
  .map(([kind, size]) => [`m-${kind}`, kind, /** @type {number} */ (size)]);

/** @typedef {(found: any) => Array<[string, string, number]>} PartsOf */

/** Bars of both on one scale. @param {[Side, Side]} sides @param {string} title @param {PartsOf} parts */
function bars(sides, title, parts) {
  const form = formOf(parts);
  const sums = sides.map(({ found }) => parts(found).reduce((sum, [, , value]) => sum + value, 0));
  const holdsBytes = parts === memoryParts ? sides.map(({ found }) => found.memory.capacity_bytes) : [0];
  const most = Math.max(...sums, ...holdsBytes);
  return [h("h3", {}, title), ...sides.map(({ name, found }, i) => {
    const pieces = parts(found).map(([colour, key, value]) => {
      const piece = h("span", { class: colour, title: `${format.partName(key)} ${form(value)}` });
      piece.style.width = `${(100 * value) / most}%`;
      return piece;
    });
    const over = parts === memoryParts && !found.memory.fits;
    const label = `${title}, ${name}: ${form(sums[i])}${over ? ", does not fit" : ""}`;
    return h("div", { class: "comparison-bar" },
      h("div", { class: "comparison-name" }, h("span", {}, name), h("b", { class: over ? "worse" : null }, form(sums[i]))),
      h("div", { class: "stack", role: "img", "aria-label": label }, pieces));
  })];
}

/** @param {PartsOf} parts */
const formOf = (parts) => (parts === memoryParts ? format.bytes : format.time);

/** @param {[Side, Side]} sides @param {PartsOf} parts @returns {Row[]} */
function rowsOf(sides, parts) {
  const form = formOf(parts);
  const [one, two] = sides.map(({ found }) => parts(found));
  const keys = [...new Set([...one, ...two].map(([, key]) => key))];
  return keys.map((key) => {
    const [a, b] = [one, two].map((each) => each.find(([, name]) => name === key));
    const [from, to] = [a?.[2] ?? 0, b?.[2] ?? 0];
    const name = [h("i", { class: `swatch ${(a ?? b)?.[0]}`, "aria-hidden": "true" }), format.partName(key)];
    return {
      name, cells: [from ? form(from) : "–", to ? form(to) : "–"],
      lost: difference(from, to, form), kind: judged(from, to, false),
    };
  });
}

/** @param {string[]} names @param {string} caption @param {string} of what a row is @param {Row[]} rows */
function tableOf(names, caption, of, rows) {
  return h("div", { class: "table-wrap", tabindex: "0", role: "region", "aria-label": caption }, h("table", { class: "rows compared" },
    h("caption", {}, caption),
    h("thead", {}, h("tr", {}, h("th", { scope: "col", class: "left" }, of),
      names.map((name) => h("th", { scope: "col" }, name)), h("th", { scope: "col" }, names[1], " minus ", names[0]))),
    h("tbody", {}, rows.map(({ name, cells, lost, kind }) => h("tr", {},
      h("th", { scope: "row", class: "left" }, h("span", { class: "comparison-part" }, name)),
      cells.map((cell) => h("td", {}, pieces(cell))), h("td", { class: kind || null }, pieces(lost)))))));
}

/** A text that breaks between its parts alone. @param {string} text */
export const pieces = (text) => text.split(/(?<=,) | (?=\()/).map((each, i) => [i ? " " : "", h("span", { class: each.startsWith("(") ? "piece aside" : "piece" }, each)]);

// ------------------------------------------------------------------------------ the timelines

/**
 * Draw the timelines of one layer of both, on one scale.
 * @param {HTMLElement} root
 * @param {any} page
 * @param {Array<{name: string, ask: any}>} asked
 * @param {AbortSignal} signal
 */
export async function timelines(root, page, asked, signal) {
  const [{ colourOfKind, gantt }, ...drawn] = await Promise.all([import("./charts.js"),
    ...asked.map(({ ask }) => post("api/timeline", { ...ask, of: "layer" }, signal))]);
  if (signal.aborted) return;
  const span = Math.max(...drawn.map((each) => each.span_s));
  root.replaceChildren(h("h3", {}, "One layer, on one scale"));
  drawn.forEach((data, i) => {
    const { name } = asked[i];
    const place = h("div", {});
    root.append(h("div", { class: "comparison-timeline" },
      h("p", { class: "comparison-name" }, h("span", {}, name), h("b", {}, format.time(data.span_s))), place));
    const chart = gantt(place, page, { height: () => 150 + 34 * data.streams.length, name: `compare-${i + 1}` });
    chart.set({
      span, lanes: data.streams, form: format.time, legend: [],
      events: data.events.map((/** @type {any} */ event) => shownEvent(event, colourOfKind)),
      summary: `${name}: one layer takes ${format.time(data.span_s)}.`,
    });
  });
}

/** @param {any} event @param {(kind: string, group: string) => string} colourOf */
function shownEvent(event, colourOf) {
  const carries = event.kind === "comm" || event.kind === "send";
  return {
    lane: event.stream, start: event.start_s, end: event.end_s, name: event.name, short: event.name,
    colour: colourOf(event.kind, event.group), hatched: event.kind === "idle" || (carries && !event.exposed),
    edge: carries && event.exposed, opacity: null, title: event.name,
    lines: [["lasts", format.time(event.end_s - event.start_s)]],
  };
}
