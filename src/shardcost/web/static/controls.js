// @ts-check
// The left column: everything that can be asked. It shows the question and what the server says
// of each step, and hands changes on; it decides nothing about what is possible.

import { byId, h } from "./dom.js";
import * as format from "./format.js";
import { Slider } from "./slider.js";
import { applies } from "./state.js";

/** @typedef {import("./state.js").Ask} Ask */
/** @typedef {import("./slider.js").Step} Step */
/** @typedef {{set: (patch: Ask, how?: {push?: boolean}) => void, ask: () => Ask}} Owner */

/** Axes that are sliders: name and what it is. @type {Record<string, [string, string]>} */
const AXES = {
  gpus: ["GPUs", "in all: tp x cp x pp x dp"],
  tp: ["Tensor", "GPUs that share each layer's matrices"],
  cp: ["Context", "GPUs that share each sequence"],
  pp: ["Pipeline", "stages of consecutive layers"],
  dp: ["Data", "replicas that divide the batch"],
  ep: ["Expert", "GPUs that the experts of a layer are spread over"],
  virtual_stages: ["Virtual stages", "virtual pipeline stages of each rank (VP), interleaved"],
  micro_batch: ["Micro-batch", "sequences that a replica works on at a time"],
  zero: ["ZeRO", "what dp shards: 1 optimizer, 2 gradients too, 3 weights too"],
};

/** Until the server has said which axes there are. @type {Record<string, string[]>} */
const USUAL_AXES = {
  train: ["gpus", "tp", "cp", "pp", "dp", "virtual_stages", "micro_batch", "zero"],
  prefill: ["gpus", "tp", "cp", "pp", "dp"],
  decode: ["gpus", "tp", "cp", "pp", "dp"],
};

/** Choices of a layout that change with a list. @type {Record<string, string>} */
const CHOICES = { recompute: "Recompute", schedule: "Schedule" };
/** @type {Record<string, string>} */
const MORE_CHOICES = {
  scheme: "TP scheme",
  context_scheme: "Context by",
  order: "Nearest first",
};

/** Sizes of the work: label, least, what it is. @type {Record<string, [string, number, string]>} */
const SIZES = {
  batch: ["Batch", 1, "sequences over all replicas: of a training step, or at work at once"],
  sequence_length: ["Sequence", 1, "tokens of a sequence"],
  prompt_tokens: ["Prompt tokens", 1, "new tokens of each sequence"],
  context_tokens: ["Context tokens", 1, "tokens of each sequence in the cache when the step begins"],
};
/** @type {Record<string, [string, number, string]>} */
const MORE_SIZES = {
  cached_tokens: ["Cached tokens", 0, "tokens of each sequence that are in the cache already"],
  new_tokens: ["New tokens", 1, "tokens of each sequence in a step"],
  document_tokens: ["Document", 1, "mean tokens of the documents packed into a sequence"],
};
/** @type {Record<string, [string, string]>} */
const FORMATS = {
  dtype: ["Products in", "dtype"],
  cache_dtype: ["KV cache in", "dtype"],
  gradient_dtype: ["Gradients in", "dtype"],
  optimizer: ["Optimizer", "optimizer"],
};

const PASTED = "\u0000pasted";

/** All controls of the page. */
export class Controls {
  /** @param {Owner} owner */
  constructor(owner) {
    this.owner = owner;
    /** @type {any} */
    this.catalog = { models: [], clusters: [], networks: [], software: [], choices: {} };
    /** @type {any} */
    this.estimate = null;
    /** @type {Record<string, Step[]>} */
    this.steps = {};
    /** @type {Record<string, Slider>} */
    this.sliders = {};
    /** @type {Record<string, HTMLElement & Record<string, any>>} */
    this.inputs = {};
    this.buildSliders();
    this.buildWork();
    this.buildChoices();
    this.listen();
  }

  // ---------------------------------------------------------------------------- building

  buildSliders() {
    for (const [axis, [name, hint]] of Object.entries(AXES)) {
      this.sliders[axis] = new Slider({
        axis, name, hint,
        text: (step) => stepText(axis, step),
        choose: (step) => this.owner.set(this.patchOf(axis, step)),
      });
      byId("axes").append(this.sliders[axis].element);
    }
  }

  buildWork() {
    for (const [field, [label, least, hint]] of Object.entries(SIZES)) {
      byId("work-fields").append(this.sizeField(field, label, least, hint));
    }
    const more = byId("more-work-fields");
    for (const [field, [label, least, hint]] of Object.entries(MORE_SIZES)) {
      more.append(this.sizeField(field, label, least, hint));
    }
    for (const [field, [label]] of Object.entries(FORMATS)) more.append(this.list(field, label));
    more.append(this.flag("adapters", "Train low-rank adapters only"));
  }

  buildChoices() {
    const choices = byId("layout-choices");
    choices.append(this.flag("sequence_parallel", "Sequence parallel"));
    for (const [field, label] of Object.entries(CHOICES)) choices.append(this.list(field, label));
    const more = byId("more-layout-fields");
    for (const [field, label] of Object.entries(MORE_CHOICES)) more.append(this.list(field, label));
    more.append(this.sizeField("shard_degree", "ZeRO over", 1, "ranks that share what ZeRO shards"));
    more.append(this.sizeField("imbalance", "Imbalance", 1,
      "tokens of the fullest rank's experts, over the mean of the ranks", "any"));
  }

  /**
   * A number with buttons for its half and its double.
   * @param {string} field @param {string} label @param {number} least @param {string} hint
   * @param {string} [step]
   */
  sizeField(field, label, least, hint, step = "1") {
    const id = `field-${field}`;
    const input = h("input", {
      type: "number", id, min: least, max: 1e9, step, inputmode: "numeric",
      autocomplete: "off", title: hint, data: { field },
    });
    input.addEventListener("input", () => this.typed(field, input, least));
    this.inputs[field] = input;
    const by = (/** @type {number} */ factor) => () => this.scaled(field, input, factor, least);
    return h(
      "div",
      { class: "field size", data: { row: field } },
      h("label", { for: id, title: hint }, label),
      h(
        "div",
        { class: "with-button" },
        h("button", {
          type: "button", class: "small step-down", title: "Half", data: { half: field },
          "aria-label": `Half: ${label}`, on: { click: by(0.5) },
        }, "÷2"),
        input,
        h("button", {
          type: "button", class: "small step-up", title: "Double", data: { double: field },
          "aria-label": `Double: ${label}`, on: { click: by(2) },
        }, "×2"),
      ),
    );
  }

  /** @param {string} field @param {string} label */
  list(field, label) {
    const id = `field-${field}`;
    const select = h("select", { id, data: { field } });
    select.addEventListener("change", () => {
      const step = this.steps[field]?.find((each) => each.value === select.value);
      this.owner.set(step?.set ?? { [field]: select.value || null });
    });
    this.inputs[field] = select;
    const row = { class: "field inline", data: { row: field } };
    return h("div", row, h("label", { for: id }, label), select);
  }

  /** @param {string} field @param {string} label */
  flag(field, label) {
    const id = `field-${field}`;
    const box = h("input", { type: "checkbox", id, data: { field } });
    box.addEventListener("change", () => this.owner.set({ [field]: box.checked || null }));
    this.inputs[field] = box;
    return h(
      "div",
      { class: "field check", data: { row: field } },
      box, h("label", { for: id }, label), h("span", { class: "effect", id: `${id}-effect` }),
    );
  }

  listen() {
    const { owner } = this;
    for (const id of ["model", "on"]) {
      byId(id).addEventListener("change", () => {
        if (byId(id).value !== PASTED) owner.set({ [id]: byId(id).value });
      });
    }
    for (const id of ["network", "software"]) {
      byId(id).addEventListener("change", () => owner.set({ [id]: byId(id).value || null }));
    }
    for (const radio of document.querySelectorAll('input[name="phase"]')) {
      radio.addEventListener("change", () => {
        owner.set({ phase: /** @type {HTMLInputElement} */ (radio).value });
      });
    }
    const toggle = byId("controls-toggle");
    const unfold = (/** @type {boolean} */ open) => {
      toggle.setAttribute("aria-expanded", String(open));
      byId("controls").classList.toggle("open", open);
    };
    toggle.addEventListener("click", () => unfold(toggle.getAttribute("aria-expanded") !== "true"));
    byId("jump").addEventListener("click", () => {
      unfold(true);
      toggle.scrollIntoView();
      toggle.focus({ preventScroll: true });
    });
  }

  // ---------------------------------------------------------------------------- changing

  /**
   * Return what moving an axis changes. The GPUs in all stay as they are when they are divided
   * anew, and dp is what is left; moving dp itself is taking more or fewer GPUs.
   * @param {string} axis @param {Step} step
   * @returns {Ask}
   */
  patchOf(axis, step) {
    if (step.set) return step.set;
    const ask = this.owner.ask();
    if (axis === "gpus") return { gpus: step.value, dp: null };
    if (axis === "dp") {
      const { tp, cp, pp } = this.estimate?.layout ?? { tp: 1, cp: 1, pp: 1, ...ask };
      return { gpus: step.value * tp * cp * pp, dp: null };
    }
    if (["tp", "cp", "pp"].includes(axis)) {
      const gpus = ask.gpus ?? this.estimate?.gpus ?? null;
      return { [axis]: step.value, gpus, dp: null };
    }
    return { [axis]: step.value };
  }

  /** @param {string} field @param {any} input @param {number} least */
  typed(field, input, least) {
    const text = input.value.trim();
    const value = text === "" ? null : Number(text);
    const bad =
      !input.validity.valid || (value !== null && !(value >= least)) ||
      (value === null && field in SIZES);
    input.setAttribute("aria-invalid", String(bad));
    if (!bad) this.owner.set({ [field]: value });
  }

  /** @param {string} field @param {any} input @param {number} factor @param {number} least */
  scaled(field, input, factor, least) {
    const value = Number(input.value) || least || 1;
    const next = Math.max(least, field === "imbalance" ? value * factor : Math.floor(value * factor));
    input.value = String(next);
    input.setAttribute("aria-invalid", "false");
    this.owner.set({ [field]: next });
  }

  // ----------------------------------------------------------------------------- showing

  /** @param {any} catalog */
  fill(catalog) {
    this.catalog = catalog;
    this.show(this.owner.ask(), this.estimate);
  }

  /**
   * Show a question, and the estimate of it once there is one.
   * @param {Ask} ask @param {any} estimate
   */
  show(ask, estimate) {
    this.estimate = estimate;
    this.showLists(ask, estimate);
    for (const radio of document.querySelectorAll('input[name="phase"]')) {
      const each = /** @type {HTMLInputElement} */ (radio);
      each.checked = each.value === ask.phase;
    }
    for (const field of Object.keys({ ...SIZES, ...MORE_SIZES, shard_degree: 0, imbalance: 0 })) {
      this.showSize(field, ask);
    }
    for (const [field, [, choices]] of Object.entries(FORMATS)) this.showChoice(field, choices, ask);
    for (const field of Object.keys({ ...CHOICES, ...MORE_CHOICES })) {
      this.showChoice(field, field, ask);
    }
    for (const field of ["sequence_parallel", "adapters"]) {
      this.inputs[field].checked = Boolean(ask[field]);
      this.showRow(field, ask);
    }
    this.showAxes(ask);
  }

  /** Show what each step would do. @param {Record<string, Step[]>} steps */
  showSteps(steps) {
    this.steps = steps;
    this.show(this.owner.ask(), this.estimate);
  }

  /** @param {Ask} ask @param {any} estimate */
  showLists(ask, estimate) {
    const { models, clusters, networks, software } = this.catalog;
    const model = named(models, (each) => [each.name, count(each)]);
    fillList("model", model, ask.config ? PASTED : ask.model, pasted(ask.config, estimate?.model));
    const cluster = named(clusters, (each) => [each.name, each.title]);
    fillList("on", cluster, ask.profile ? PASTED : ask.on, pasted(ask.profile, estimate?.cluster));
    const chosen = ask.network ?? estimate?.network;
    const usual = !ask.network && chosen ? `${chosen} · usual` : "none";
    fillList("network", [["", usual], ...named(networks, (each) => [each.name, each.title])],
      ask.network ?? "", null);
    const able = software.filter((/** @type {any} */ each) =>
      !each.phases || each.phases.includes(ask.phase));
    const default_ = !ask.software && estimate?.software ? `${estimate.software} · usual` : "the usual";
    fillList("software", [["", default_], ...named(able, (each) => [each.name, each.title])],
      ask.software ?? "", null);
  }

  /** @param {string} field @param {Ask} ask */
  showSize(field, ask) {
    const input = this.inputs[field];
    const value = ask[field] ?? "";
    // While someone is typing, their text stands.
    if (document.activeElement !== input || Number(input.value) !== Number(value)) {
      if (document.activeElement !== input || input.getAttribute("aria-invalid") !== "true") {
        input.value = String(value);
        input.setAttribute("aria-invalid", "false");
      }
    }
    const known = this.estimate?.workload?.[field] ?? this.estimate?.layout?.[field];
    input.placeholder = known === null || known === undefined ? "–" : String(known);
    this.showRow(field, ask);
  }

  /** @param {string} field @param {string} choices @param {Ask} ask */
  showChoice(field, choices, ask) {
    const select = this.inputs[field];
    const steps = this.steps[field];
    const values = this.catalog.choices?.[choices] ?? (steps ?? []).map((each) => each.value);
    const now = this.estimate?.layout?.[field] ?? this.estimate?.workload?.[field];
    const options = [["", now && !ask[field] ? `${format.words(now)} · usual` : "the usual"]];
    for (const value of values) options.push([value, format.words(value)]);
    fillSelect(select, options, ask[field] ?? "");
    for (const option of select.options) {
      const step = steps?.find((each) => each.value === option.value);
      option.disabled = Boolean(step && !step.possible);
      option.title = step ? stepText(field, step) : "";
      if (step?.time_s) option.textContent = `${format.words(step.value)}: ${format.time(step.time_s)}`;
    }
    this.showRow(field, ask);
  }

  /** @param {string} field @param {Ask} ask */
  showRow(field, ask) {
    const row = this.inputs[field].closest("[data-row]");
    row.hidden = !applies(field, ask.phase);
    if (field === "imbalance") row.hidden = !this.mixes(ask);
  }

  /** Has the model experts? @param {Ask} ask */
  mixes(ask) {
    const model = this.catalog.models.find((/** @type {any} */ each) => each.name === ask.model);
    return Boolean(ask.config || ask.imbalance || model?.experts);
  }

  /** @param {Ask} ask */
  showAxes(ask) {
    const known = Object.keys(this.steps).filter((axis) => axis in AXES);
    const shown = known.length ? known : USUAL_AXES[ask.phase];
    for (const [axis, slider] of Object.entries(this.sliders)) {
      const now = this.now(axis, ask);
      slider.element.hidden =
        !shown.includes(axis) || !applies(axis, ask.phase) || (axis === "ep" && !this.mixes(ask));
      slider.show(stepsAt(this.steps[axis], now));
    }
    const flags = this.steps.sequence_parallel;
    const other = flags?.find((each) => each.value !== Boolean(ask.sequence_parallel));
    byId("field-sequence_parallel-effect").textContent =
      other?.time_s ? `${other.value ? "on" : "off"}: ${format.time(other.time_s)}` : "";
    this.inputs.sequence_parallel.disabled = Boolean(
      other && !other.possible && !ask.sequence_parallel);
    this.inputs.sequence_parallel.title = other?.reason ?? "";
  }

  /** Return the value that an axis has now. @param {string} axis @param {Ask} ask */
  now(axis, ask) {
    const found = this.estimate;
    if (axis === "dp") return ask.dp ?? replicas(ask) ?? found?.layout.dp ?? 1;
    if (axis === "gpus") return ask.gpus ?? found?.gpus ?? 1;
    return ask[axis] ?? found?.layout[axis] ?? (axis === "zero" ? 0 : 1);
  }
}

/**
 * Return steps with the present value marked, put in if it is not among them.
 * @param {Step[]|undefined} steps @param {any} now
 * @returns {Step[]}
 */
function stepsAt(steps, now) {
  const marked = (steps ?? []).map((each) => ({ ...each, current: each.value === now }));
  if (marked.some((each) => each.current)) return marked;
  const here = { value: now, possible: true, fits: true, reason: null, time_s: null, current: true };
  return [...marked, here].sort((one, other) => one.value - other.value);
}

/** Return what the GPUs in all leave for dp, before the server has said so. @param {Ask} ask */
function replicas(ask) {
  const left = ask.gpus / ((ask.tp ?? 1) * (ask.cp ?? 1) * (ask.pp ?? 1));
  return Number.isInteger(left) ? left : null;
}

/** Say what a step would do. @param {string} axis @param {Step} step */
export function stepText(axis, step) {
  const name = `${format.words(axis)} ${format.words(String(step.value))}`;
  if (!step.possible) return `${name}: impossible${step.reason ? `, ${step.reason}` : ""}`;
  const said = step.time_s ? `${name}: ${format.time(step.time_s)}` : name;
  const rate = step.tokens_per_s_per_gpu;
  const each = rate ? `, ${format.rate(rate)} tokens/s/GPU` : "";
  // The first clause says how much is missing; the rest stands in the headline once it is chosen.
  const short = step.fits ? "" : `; does not fit: ${(step.reason ?? "memory").split(": ")[0]}`;
  return said + each + short;
}

/** @param {any[]} nouns @param {(noun: any) => [string, string]} said @returns {string[][]} */
function named(nouns, said) {
  return nouns.map((each) => {
    const [name, more] = said(each);
    return [name, more && more !== name ? `${name} · ${more}` : name];
  });
}

/** @param {any} model */
const count = (model) => (model.parameters ? `${format.count(model.parameters)} parameters` : "");

/** @param {any} file @param {string|undefined} name */
const pasted = (file, name) => (file ? `pasted: ${name ?? "…"}` : null);

/**
 * @param {string} id @param {string[][]} options @param {string} value @param {string|null} own
 */
function fillList(id, options, value, own) {
  const known = value === PASTED || options.some(([each]) => each === value);
  const all = own ? [[PASTED, own], ...options] : known ? options : [[value, value], ...options];
  fillSelect(byId(id), all, value);
}

/** Fill a list, only if it differs: an open one must not close. */
function fillSelect(/** @type {any} */ select, /** @type {string[][]} */ options, /** @type {string} */ value) {
  const key = JSON.stringify(options);
  if (select.filled !== key) {
    select.filled = key;
    select.replaceChildren(...options.map(([each, text]) => h("option", { value: each }, text)));
  }
  select.value = value;
}
