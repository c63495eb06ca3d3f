// @ts-check
// The answer at the top: the time and how sure it is, rates, where the time goes, what memory is
// held, what limits it, and the one change that helps most.

import { byId, h, number, refill } from "./dom.js";
import * as format from "./format.js";

/** What the time of each phase is called, and its figure. @type {Record<string, string[]>} */
const TIMES = {
  train: ["Time of a step", "time_s"],
  prefill: ["TTFT, time to first token", "ttft_s"],
  decode: ["TPOT, time per output token", "tpot_s"],
};

const TRIFLE = 1e-9; // of the time: rounding, not a part

/** Class of the colour of a part; its meaning is the same in every picture. @param {string} part */
export function partColour(part) {
  const group = part.endsWith(" communication") ? part.split(" ")[0] : null;
  if (group) return ["tp", "dp", "pp", "cp", "ep"].includes(group) ? `k-${group}` : "k-cp";
  if (part === "waiting for the slowest rank") return "k-bubble";
  const known = ["gemm", "attention", "elementwise", "optimizer", "bubble"];
  return known.includes(part) ? `k-${part}` : "k-host";
}

/** Show an estimate. @param {any} found */
export function show(found) {
  const phase = found.workload.phase;
  byId("headline").dataset.state = "shown";
  byId("headline").dataset.phase = phase;
  byId("headline-error").hidden = true;
  byId("headline-title").textContent = found.title ?? `${found.model} on ${found.gpus} GPUs`;
  byId("headline-details").textContent = [found.details].flat().join(", ") || "\u00a0";
  showTime(found, phase);
  refill(byId("headline-tiles"), ...tiles(found, phase));
  showParts(found);
  showMemory(found.memory);
  showCautions(found);
}

/** Return the answer as one would say it. @param {any} found */
export function inWords(found) {
  const [label, figure] = TIMES[found.workload.phase];
  const fits = found.memory.fits ? "" : ", does not fit memory";
  return `${label} ${format.time(found[figure] ?? found.time_s)}${fits}`;
}

/** @param {any} found @param {string} phase */
function showTime(found, phase) {
  const [label, figure] = TIMES[phase];
  byId("headline-label").textContent = label;
  const value = found[figure] ?? found.time_s;
  refill(byId("headline-time"), number(format.time(value), figure, { label }));
  const { low, high, rows, like } = found.intervals?.[figure] ?? {
    low: found.low_s, high: found.high_s, ...found.interval,
  };
  const { confidence_pct: sure } = found.interval;
  const line = byId("headline-interval");
  line.textContent = `${format.ends(low, high)}, ${sure} % interval from ${format.whole(rows)} similar measurements`;
  line.title = like;
  const dot = /** @type {HTMLElement} */ (document.querySelector(".spread span"));
  dot.style.left = `${(100 * (value - low)) / (high - low || 1)}%`;
}

const tflops = (/** @type {number} */ value) => format.fixed(value, 1);

/** @param {any} found @param {string} phase */
function tiles(found, phase) {
  const { intervals = {} } = found;
  /** @param {string} name @param {string} unit */
  const rate = (name, unit) =>
    tile(unit, format.rate(found[name]), name, intervals[name], format.rate);
  /** @param {string} label @param {string} name @param {number} value */
  const share = (label, name, value) =>
    tile(label, format.percent(value), name, intervals[name], format.percent);
  return [
    phase === "decode" && found.workload.new_tokens > 1 &&
      tile("step", format.time(found.time_s), "time_s", intervals.time_s, format.time),
    rate("tokens_per_s", "tokens/s"),
    rate("tokens_per_s_per_gpu", "tokens/s/GPU"),
    phase === "decode" && rate("tokens_per_s_per_user", "tokens/s/user"),
    share("MFU", "mfu", found.mfu),
    phase === "train" && tile("TFLOP/s/GPU", tflops(found.tflops_per_gpu), "tflops_per_gpu", intervals.tflops_per_gpu, tflops),
    share("communication", "comm_share", found.comm.share),
    found.energy_j !== null && phase !== "decode" &&
      tile("energy", format.energy(found.energy_j), "energy_j", "at most", format.energy),
  ];
}

/**
 * @param {string} label @param {string} text @param {string} figure
 * @param {{low: number, high: number}|string|undefined} ends @param {(value: number) => string} form
 */
function tile(label, text, figure, ends, form) {
  const spread = typeof ends !== "object" ? ends
    : ends.low < ends.high ? format.ends(ends.low, ends.high, form) : "";
  return h(
    "div",
    { class: "tile", data: { tile: figure } },
    h("span", { class: "label" }, label),
    h("span", { class: "value" }, number(text, figure, { label })),
    h("span", { class: "interval" }, spread || "\u00a0"),
  );
}

// ---------------------------------------------------------------------------------- the bars

/** @param {any} found */
function showParts(found) {
  const hidden = hiddenBy(found);
  const parts = Object.entries(found.parts).filter(
    ([part, seconds]) => Math.abs(seconds) > TRIFLE * found.time_s || hidden[part] > 0);
  const total = found.time_s;
  fillBar("time-bar", parts.map(([part, seconds]) => [
    partColour(part), seconds / total, `${format.partName(part)} ${format.time(seconds)}`,
  ]));
  byId("time-bar").setAttribute("aria-label", `Parts of the time: ${parts.map(
    ([part, seconds]) => `${format.partName(part)} ${format.percent(seconds / total)}`).join(", ")}`);
  refill(byId("time-legend"), ...parts.map(([part, seconds]) => h(
    "li", {},
    h("i", { class: `swatch ${partColour(part)}`, "aria-hidden": "true" }),
    h("span", { class: "what" }, format.partName(part), hidden[part] > 0 && h(
      "small", { title: "under computation: it takes no time of its own" }, "hidden ",
      number(format.time(hidden[part]), `comm.${part.split(" ")[0]}.hidden_s`,
        { label: `${format.partName(part)} hidden` }))),
    number(format.time(seconds), `parts.${part}`, { label: format.partName(part) }),
    h("span", { class: "share" }, format.percent(seconds / total)),
  )));
}

/** Return what of each group is hidden, by its part. @param {any} found */
function hiddenBy(found) {
  /** @type {Record<string, number>} */
  const hidden = {};
  for (const [group, held] of Object.entries(found.comm.by_group)) {
    hidden[`${group} communication`] = /** @type {any} */ (held).hidden_s;
  }
  return hidden;
}

/** @param {any} memory */
function showMemory(memory) {
  const kinds = Object.entries(memory.by_kind).filter(([, size]) => size > 0);
  const whole = Math.max(memory.capacity_bytes, memory.peak_bytes);
  const bar = byId("memory-bar");
  fillBar("memory-bar", kinds.map(([kind, size]) => [
    `m-${kind}`, size / whole, `${format.partName(kind)} ${format.bytes(size)}`,
  ]));
  const mark = h("span", { class: "capacity", title: `holds ${format.bytes(memory.capacity_bytes)}` });
  mark.style.left = `${(100 * memory.capacity_bytes) / whole}%`;
  bar.append(mark);
  bar.classList.toggle("over", !memory.fits);
  bar.setAttribute("aria-label", `${format.bytes(memory.peak_bytes)} of ${format.bytes(
    memory.capacity_bytes)}: ${kinds.map(([kind, size]) => `${format.partName(kind)} ${format.bytes(
    size)}`).join(", ")}`);
  const share = format.percent(memory.peak_bytes / memory.capacity_bytes);
  refill(byId("memory-total"),
    number(format.bytes(memory.peak_bytes), "memory_bytes", { label: "memory" }),
    ` of ${format.bytes(memory.capacity_bytes)} (${share})`);
  byId("memory-total").classList.toggle("over", !memory.fits);
  const badge = byId("headline-fit");
  badge.hidden = memory.fits;
  badge.title = memory.reason ?? "";
  const shown = kinds.sort(([, one], [, other]) => other - one);
  refill(byId("memory-legend"), ...shown.map(([kind, size]) => h(
    "li", {},
    h("i", { class: `swatch m-${kind}`, "aria-hidden": "true" }),
    h("span", { class: "what" }, format.partName(kind)),
    number(format.bytes(size), `memory.${kind}`, { label: format.partName(kind) }),
    h("span", { class: "share" }, format.percent(size / memory.capacity_bytes)),
  )));
}

/** @param {string} id @param {Array<[string, number, string]>} pieces class, share, words */
function fillBar(id, pieces) {
  byId(id).replaceChildren(...pieces.filter(([, share]) => share > 0).map(([kind, share, said]) => {
    const piece = h("span", { class: kind, title: said });
    piece.style.width = `${100 * share}%`;
    return piece;
  }));
}

// -------------------------------------------------------------------------------- the advice

/**
 * Show what limits the layout and what helps.
 * @param {any} advice
 * @param {any} found the estimate, if there is one
 */
export function showAdvice(advice, found) {
  byId("limit").textContent = format.sentence(advice.limit?.words ?? "–");
  const { change } = advice;
  const better = found && !found.memory.fits ? "fit" : "faster";
  byId("change").textContent = format.sentence(
    change ? change.words : `No single change to this layout makes it ${better}.`);
  byId("try-change").hidden = !change;
  byId("headline").dataset.advice = "shown";
}

/** Say why there is no advice. @param {string} line */
export function showNoAdvice(line) {
  byId("limit").textContent = format.told(line);
  byId("change").textContent = "–";
  byId("try-change").hidden = true;
}

/** @param {any} found */
function showCautions(found) {
  const box = byId("cautions");
  const warnings = unique(found.warnings);
  const minor = (found.caveats ?? []).map((each) => each.text);
  const notes = unique([...minor, ...found.notes]).filter((each) => !warnings.includes(each));
  box.hidden = !warnings.length && !notes.length;
  const said = [counted(warnings.length, "warning"), counted(notes.length, "note")];
  box.querySelector("summary").textContent = said.filter(Boolean).join(", ");
  box.querySelector("ul").replaceChildren(
    ...warnings.map((each) => h("li", { class: "warning" }, format.unflagged(each))),
    ...notes.map((each) => h("li", {}, format.unflagged(each))),
  );
}

/** @param {string[]|undefined} lines */
const unique = (lines) => [...new Set(lines ?? [])];

/** @param {number} many @param {string} noun */
const counted = (many, noun) => (many ? `${many} ${noun}${many > 1 ? "s" : ""}` : "");

/** @typedef {{words: string, why: string|null, undo: (() => void)|null}} Adjustment */

/** Say what was changed so that there is an answer. @param {Adjustment|null} adjusted */
export function showAdjusted(adjusted) {
  const box = byId("adjusted");
  box.hidden = !adjusted;
  box.replaceChildren();
  if (!adjusted) return;
  const { words, why, undo } = adjusted;
  box.append(h("p", {}, h("strong", {}, "Adjusted: "), words));
  if (why) box.append(h("details", {}, h("summary", {}, "Why"), h("p", {}, format.told(why))));
  if (undo) {
    box.append(h("button", { type: "button", class: "small", id: "adjusted-undo", on: { click: undo } }, "Undo"));
  }
}

/**
 * Say why there is no estimate; the last one stays, dimmed.
 * @param {string} line
 * @param {{id: string, name: string, go: () => void}[]} ways to questions that have an answer
 */
export function showError(line, ways) {
  const box = byId("headline-error");
  byId("headline").dataset.state = "error";
  byId("try-change").hidden = true;
  box.hidden = false;
  box.replaceChildren(h("p", {}, format.told(line)));
  if (!byId("headline-tiles").childElementCount) {
    byId("headline-title").textContent = "This question has no answer";
  }
  for (const { id, name, go } of ways) {
    const click = () => {
      go();
      byId("headline").focus({ preventScroll: true });
    };
    box.append(h("button", { type: "button", class: "small", id, on: { click } }, name));
  }
}
