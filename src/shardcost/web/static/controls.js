// @ts-check
// The left column: everything that can be asked. It shows the question and what the server says
// of each step, and hands changes on; it decides nothing about what is possible.

import { byId, h } from "./dom.js";
import * as format from "./format.js";
import { Slider } from "./slider.js";
import { applies, OPTIONS } from "./state.js";

/** @typedef {import("./state.js").Ask} Ask */
/** @typedef {import("./state.js").Option} Option */
/** @typedef {import("./slider.js").Step} Step */
/**
 * How a change is made: `push` leaves a step in the browser's history, `kept` are the fields that
 * stay where the layout has to be adjusted (none: it is not), `said` what already was, `from` the
 * question that is changed if not the present one.
 * @typedef {{push?: boolean, kept?: string[], said?: string, from?: Ask|null}} How
 */
/** @typedef {{set: (patch: Ask, how?: How) => void, ask: () => Ask, settle: (kept: string[]) => void}} Owner */

const SLIDERS = Object.values(OPTIONS).filter((each) => each.place === "slider");
/** Options with a field of their own. */
const PLACED = Object.values(OPTIONS).filter((each) => ["main", "more"].includes(each.place));
/** Where fields stand, by group and place. @type {Record<string, string>} */
const PLACES = {
  "workload main": "work-fields", "workload more": "more-work-fields",
  "layout main": "layout-choices", "layout more": "more-layout-fields",
};

/** Fields that mean something only where the model has experts. */
const OF_EXPERTS = [
  "etp", "redundant_experts", "routing", "dispatch", "expert_overlap", "imbalance", "expert_dtype", "dispatch_dtype",
];

/** Number formats that weights are multiplied in. */
const FORMATS = ["dtype", "attention_dtype", "expert_dtype"];

const PASTED = "\u0000pasted";

/** All controls of the page. */
export class Controls {
  /** @param {Owner} owner */
  constructor(owner) {
    this.owner = owner;
    /** @type {any} */
    this.catalog = { models: [], clusters: [], networks: [], software: [] };
    /** @type {any} */
    this.estimate = null;
    /** @type {Record<string, Step[]>} */
    this.steps = {};
    /** The question when a thumb was taken hold of. @type {Ask|null} */
    this.grabbed = null;
    /** @type {Record<string, Slider>} */
    this.sliders = {};
    /** @type {Record<string, HTMLElement & Record<string, any>>} */
    this.inputs = {};
    this.buildSliders();
    for (const option of PLACED) byId(PLACES[`${option.group} ${option.place}`]).append(this.field(option));
    this.listen();
  }

  // ---------------------------------------------------------------------------- building

  buildSliders() {
    for (const { name: axis, label: name, hint, least, most } of SLIDERS) {
      this.sliders[axis] = new Slider({
        axis, name, hint, least, most,
        text: (step) => stepText(axis, step),
        choose: (step) => this.owner.set(
          this.patchOf(axis, step.value, step), { said: gaveWay(step), from: this.grabbed }),
        // A drag through many steps ends with the last alone: none leaves a trace.
        grab: (held) => { this.grabbed = held ? this.owner.ask() : null; },
        type: (value) => this.owner.set(this.patchOf(axis, value), { kept: axis === "dp" ? [] : [axis] }),
      });
      byId("axes").append(this.sliders[axis].element);
    }
  }

  /** @param {Option} option */
  field(option) {
    if (option.kind === "flag") return this.flag(option);
    return option.kind === "word" ? this.list(option) : this.sizeField(option);
  }

  /** A number with buttons for its half and its double. @param {Option} option */
  sizeField(option) {
    const { name: field, label, hint } = option;
    const id = `field-${field}`;
    const input = h("input", {
      type: "number", id, min: option.least, max: option.most, step: option.kind === "number" ? "any" : "1",
      inputmode: option.kind === "number" ? "decimal" : "numeric", autocomplete: "off", title: hint,
      "aria-describedby": `${id}-error`, data: { field },
    });
    input.addEventListener("input", () => this.typed(option, input));
    input.addEventListener("change", () => this.owner.settle([field]));
    this.inputs[field] = input;
    const by = (/** @type {number} */ factor) => () => this.scaled(option, input, factor);
    return h(
      "div",
      { class: "field size", data: { row: field } },
      h("label", { for: id, title: hint }, label),
      h(
        "div",
        { class: "with-button" },
        h("button", {
          type: "button", class: "small step-down", title: "Half", data: { half: field },
          "aria-label": `÷2: half of ${label}`, on: { click: by(0.5) },
        }, "÷2"),
        input,
        h("button", {
          type: "button", class: "small step-up", title: "Double", data: { double: field },
          "aria-label": `×2: double ${label}`, on: { click: by(2) },
        }, "×2"),
      ),
      h("p", { class: "field-error", id: `${id}-error`, role: "alert", hidden: true }),
    );
  }

  /** @param {Option} option */
  list({ name: field, label, hint }) {
    const id = `field-${field}`;
    const select = h("select", { id, title: hint, data: { field } });
    select.addEventListener("change", () => {
      const step = this.steps[field]?.find((each) => each.value === select.value);
      this.owner.set(step?.set ?? { [field]: select.value || null });
    });
    this.inputs[field] = select;
    const row = { class: "field inline", data: { row: field } };
    return h("div", row, h("label", { for: id, title: hint }, label), select);
  }

  /** @param {Option} option */
  flag({ name: field, label, hint }) {
    const id = `field-${field}`;
    const box = h("input", { type: "checkbox", id, data: { field } });
    box.addEventListener("change", () => this.owner.set({ [field]: box.checked || null }));
    this.inputs[field] = box;
    return h(
      "div",
      { class: "field check", data: { row: field } },
      box, h("label", { for: id, title: hint }, label), h("span", { class: "effect", id: `${id}-effect` }),
    );
  }

  listen() {
    const { owner } = this;
    for (const id of ["model", "on"]) {
      byId(id).addEventListener("change", () => {
        if (byId(id).value !== PASTED) owner.set({ [id]: byId(id).value }, { kept: [id] });
      });
    }
    for (const id of ["network", "software"]) {
      byId(id).addEventListener("change", () => owner.set({ [id]: byId(id).value || null }, { kept: [id] }));
    }
    for (const radio of document.querySelectorAll('input[name="phase"]')) {
      radio.addEventListener("change", () => {
        owner.set({ phase: /** @type {HTMLInputElement} */ (radio).value }, { kept: ["phase"] });
      });
    }
    const toggle = byId("controls-toggle");
    const unfold = (/** @type {boolean} */ open) => {
      toggle.setAttribute("aria-expanded", String(open));
      byId("controls").classList.toggle("open", open);
    };
    toggle.addEventListener("click", () => unfold(toggle.getAttribute("aria-expanded") !== "true"));
  }

  // ---------------------------------------------------------------------------- changing

  /**
   * Return what moving an axis changes. The GPUs in all stay as they are when they are divided
   * anew, and dp is what is left; moving dp itself is taking more or fewer GPUs.
   * @param {string} axis @param {any} value @param {Step} [step] what the server says of it
   * @returns {Ask}
   */
  patchOf(axis, value, step) {
    if (step?.set) return step.set;
    const ask = this.owner.ask();
    if (axis === "gpus") return { gpus: value, dp: null };
    if (axis === "dp") {
      const { tp, cp, pp } = this.estimate?.layout ?? { tp: 1, cp: 1, pp: 1, ...ask };
      return { gpus: value * tp * cp * pp, dp: null };
    }
    if (["tp", "cp", "pp"].includes(axis)) {
      const gpus = ask.gpus ?? this.estimate?.gpus ?? null;
      return { [axis]: value, gpus, dp: null };
    }
    return { [axis]: value };
  }

  /** @param {Option} option @param {any} input */
  typed({ name: field, label, kind, least, most, required }, input) {
    const text = input.value.trim();
    const value = text === "" ? null : Number(text);
    const bad =
      !input.validity.valid || (value !== null && !(value >= least && value <= most)) ||
      (value === null && required);
    const number = kind === "number" ? "a number" : "a whole number";
    mark(input, bad ? `${label}: ${number} from ${format.whole(least)} to ${format.whole(most)}` : "");
    if (!bad) this.owner.set({ [field]: value });
  }

  /** @param {Option} option @param {any} input @param {number} factor */
  scaled({ name: field, least, most, kind }, input, factor) {
    const value = (Number(input.value) || least || 1) * factor;
    const next = Math.min(most, Math.max(least, kind === "number" ? value : Math.floor(value)));
    input.value = String(next);
    mark(input, "");
    this.owner.set({ [field]: next }, { kept: [field] });
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
    for (const { name, kind } of PLACED) {
      if (kind === "flag") this.inputs[name].checked = Boolean(ask[name]);
      else if (kind === "word") this.showChoice(name, ask);
      else this.showSize(name, ask);
      this.showRow(name, ask);
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
    const model = named(byEveryName(models), (each) => [each.name, count(each)]);
    fillList("model", model, ask.config ? PASTED : ask.model, pasted(ask.config, estimate?.model));
    const cluster = named(clusters, (each) => [each.name, each.title], ask.on);
    fillList("on", cluster, ask.profile ? PASTED : ask.on, pasted(ask.profile, estimate?.cluster));
    const chosen = ask.network ?? estimate?.network;
    const usual = !ask.network && chosen ? `${chosen} · default` : "none";
    fillList("network", [["", usual], ...named(networks, (each) => [each.name, each.title], ask.network)],
      ask.network ?? "", null);
    const able = software.filter((/** @type {any} */ each) =>
      !each.phases || each.phases.includes(ask.phase));
    const default_ = !ask.software && estimate?.software ? `${estimate.software} · default` : "default";
    fillList("software", [["", default_], ...named(able, (each) => [each.name, each.title], ask.software)],
      ask.software ?? "", null);
    this.markSoftware(able);
  }

  /** Grey what does not run on the machine's GPUs. @param {any[]} software */
  markSoftware(software) {
    const vendor = this.machine()?.vendor;
    for (const option of byId("software").options) {
      const { vendors = null } = software.find((each) => each.name === option.value) ?? {};
      option.disabled = Boolean(vendor && vendors && !vendors.includes(vendor));
      option.title = option.disabled ? `runs on ${vendors.join(" and ")}` : "";
    }
  }

  /** The chosen machine, as the catalog lists it; none of a pasted one. */
  machine() {
    const { on } = this.owner.ask();
    return this.catalog.clusters.find((/** @type {any} */ each) => each.name === on);
  }

  /** @param {string} field @param {Ask} ask */
  showSize(field, ask) {
    const input = this.inputs[field];
    const value = ask[field] ?? "";
    // While someone is typing, their text stands.
    if (document.activeElement !== input || Number(input.value) !== Number(value)) {
      if (document.activeElement !== input || input.getAttribute("aria-invalid") !== "true") {
        input.value = String(value);
        mark(input, "");
      }
    }
    const known = this.estimate?.workload?.[field] ?? this.estimate?.layout?.[field];
    input.placeholder = known === null || known === undefined ? "–" : String(known);
  }

  /** @param {string} field @param {Ask} ask */
  showChoice(field, ask) {
    const select = this.inputs[field];
    const steps = this.steps[field];
    const now = this.estimate?.layout?.[field] ?? this.estimate?.workload?.[field];
    const options = [["", now && !ask[field] ? `${spelled(field, now)} · default` : "default"]];
    for (const value of OPTIONS[field].choices) options.push([value, spelled(field, value)]);
    fillSelect(select, options, ask[field] ?? "");
    for (const option of select.options) {
      const step = steps?.find((each) => each.value === option.value);
      option.disabled = Boolean(step && !step.possible);
      option.title = step ? stepText(field, step) : "";
      if (step?.time_s) option.textContent = `${spelled(field, step.value)}: ${format.time(step.time_s)}`;
    }
    if (FORMATS.includes(field)) this.markFormats(select, ask.phase);
  }

  /** Grey the number formats that the machine does not take; say what others are multiplied as. */
  markFormats(/** @type {any} */ select, /** @type {string} */ phase) {
    const machine = this.machine();
    const formats = machine?.formats?.[phase];
    if (!formats) return;
    for (const option of select.options) {
      if (!option.value) continue;
      const product = formats[option.value];
      const note = product === undefined ? `not on ${machine.device}`
        : OPTIONS.dtype.choices.includes(product) && product !== option.value ? `multiplied as ${product}` : "";
      option.disabled = product === undefined;
      option.title = note;
      option.textContent = note && !option.selected ? `${option.value} · ${note}` : option.value;
    }
  }

  /** @param {string} field @param {Ask} ask */
  showRow(field, ask) {
    const row = this.inputs[field].closest("[data-row]");
    row.hidden = !applies(field, ask.phase);
    if (OF_EXPERTS.includes(field)) row.hidden = row.hidden || !this.mixes(ask);
  }

  /** Has the model experts? @param {Ask} ask */
  mixes(ask) {
    const model = byEveryName(this.catalog.models).find((each) => each.name === ask.model);
    return Boolean(ask.config || model?.experts || OF_EXPERTS.some((field) => ask[field]));
  }

  /** @param {Ask} ask */
  showAxes(ask) {
    const known = Object.keys(this.steps).length > 0; // which axes there are, once the server says so
    for (const [axis, slider] of Object.entries(this.sliders)) {
      const now = this.now(axis, ask);
      slider.element.hidden =
        (known && !(axis in this.steps)) || !applies(axis, ask.phase) || (axis === "ep" && !this.mixes(ask));
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
    return ask[axis] ?? found?.layout[axis] ?? OPTIONS[axis].default;
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

/** Say at a field what is wrong with its text; "" where nothing is. @param {any} input @param {string} fault */
function mark(input, fault) {
  input.setAttribute("aria-invalid", String(Boolean(fault)));
  const line = byId(`${input.id}-error`);
  line.textContent = fault;
  line.hidden = !fault;
}

/** Return what else a step changes, beside its own axis. @param {Step} step */
function gaveWay(step) {
  const { set = {}, along = [] } = step;
  const said = along.map((name) => valued(name, set[name]));
  return [...said, ...(set.network ? [set.network] : [])].join(", ");
}

/** Return a choice as the command line spells it where it is a number format, else as words. */
const spelled = (/** @type {string} */ field, /** @type {any} */ value) =>
  (field.endsWith("dtype") ? String(value) : format.words(value));

/** Return an option with its value: `tp 8`, `ZeRO 1`. @param {string} field @param {any} value */
function valued(field, value) {
  const said = OPTIONS[field]?.said;
  return said?.endsWith(" {}") ? said.replace("{}", String(value)) : `${format.words(field)} ${spelled(field, String(value))}`;
}

/** Say what a step would do. @param {string} axis @param {Step} step */
export function stepText(axis, step) {
  const name = valued(axis, step.value);
  if (!step.possible) return `${name}: impossible${step.reason ? `, ${step.reason}` : ""}`;
  const along = step.current ? "" : gaveWay(step);
  const changed = along ? `${name} with ${along}` : name;
  const said = step.time_s ? `${changed}: ${format.time(step.time_s)}` : changed;
  const rate = step.tokens_per_s_per_gpu;
  const each = rate ? `, ${format.rate(rate)} tokens/s/GPU` : "";
  // The first clause says how much is missing; the rest stands in the headline once it is chosen.
  const short = step.fits ? "" : `; does not fit: ${(step.reason ?? "memory").split(": ")[0]}`;
  return said + each + short;
}

/**
 * Return values and texts of a list; the one that is chosen is its name alone, which is not cut off.
 * @param {any[]} nouns @param {(noun: any) => [string, string]} said @param {string} [chosen]
 * @returns {string[][]}
 */
function named(nouns, said, chosen) {
  return nouns.map((each) => {
    const [name, more] = said(each);
    return [name, more && more !== name && name !== chosen ? `${name} · ${more}` : name];
  });
}

/** Return models once for each name that they are known by, in the order of these. @param {any[]} models */
const byEveryName = (models) => models
  .flatMap((model) => [model.name, ...(model.aliases ?? [])].map((name) => ({ ...model, name })))
  .sort((one, other) => (one.name < other.name ? -1 : 1));

/** @param {any} model */
const count = (model) => (model.parameters ? format.count(model.parameters) : "");

/** @param {any} file @param {string|undefined} name */
const pasted = (file, name) => (file ? name ?? "from a file" : null);

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
