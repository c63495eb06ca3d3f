// @ts-check
// The tab that searches: which layout to run, and why the others lost. The search runs on the
// server as a job that is asked how far it is; leaving the page ends it.

import { get, isAbort, post, remove } from "./api.js";
import { announce, h, number } from "./dom.js";
import * as format from "./format.js";
import { PlanTable } from "./plan_table.js";
import { AXES, LAYOUT, NEEDED, OBJECTIVES, OPTIONS, PLAN } from "./state.js";

export const id = "plan";
export const title = "Plan";

const POLL_MS = [60, 120, 200, 300];
const TRIFLE = 1e-9; // of the time: rounding, not a loss
const WAITING = ["waiting", "running"];
/** What rows of one search may have each their own of, beside layout, machine and GPUs. */
const OWN = [
  "model", "software", "batch", "sequence_length", "prompt_tokens", "context_tokens", "dtype", "cache_dtype",
];

/** @param {HTMLElement} root @param {any} page */
export function mount(root, page) {
  const plan = new Plan(root, page);
  return {
    update: (/** @type {any} */ ask, /** @type {any} */ estimate) => plan.update(ask, estimate),
    rows: () => plan.rows(),
  };
}

class Plan {
  /** @param {HTMLElement} root @param {any} page */
  constructor(root, page) {
    this.page = page;
    /** @type {any} */
    this.ask = null;
    /** @type {any} */
    this.estimate = null;
    /** @type {any} */
    this.result = null;
    /** @type {string|null} */
    this.asked = null;
    /** @type {string|null} */
    this.job = null;
    this.turn = 0;
    /** @type {Record<string, any>} */
    this.inputs = {};
    this.form = h("div", { class: "plan-form" });
    this.start = h("button", { type: "button", class: "primary", id: "plan-start" }, "Search");
    this.cancel = h("button", { type: "button", id: "plan-cancel", disabled: true }, "Cancel");
    this.progress = h("progress", { id: "plan-progress", max: "1", value: "0", "aria-label": "Layouts priced" });
    this.status = h("span", { id: "plan-status", role: "status" });
    this.found = h("div", { id: "plan-found" });
    this.table = new PlanTable(page, {
      load: (row, more) => this.load(row, more), patchOf: (row) => this.patchOf(row), ask: () => this.ask,
    });
    root.append(
      this.form, h("div", { class: "plan-actions" }, this.start, this.cancel, this.progress, this.status),
      this.found,
    );
    this.build();
    this.listen();
  }

  build() {
    const objective = h("select", { id: "plan-objective" }, Object.entries(OBJECTIVES).map(
      ([value, text]) => h("option", { value }, text)));
    this.inputs.objective = objective;
    objective.addEventListener("change", () => {
      this.showPrice();
      this.keep();
    });
    const [{ label: wanted }, ...fields] = PLAN;
    this.form.append(h("div", { class: "field" }, h("label", { for: "plan-objective" }, wanted), objective));
    this.form.append(...fields.map(({ name, kind, label, example, default: usual, hint }) =>
      (kind === "flag" ? this.check(name, label, hint)
        : this.text(name, label, example || String(usual ?? ""), hint))));
    const more = h("details", { class: "more wide", id: "plan-fix" }, h("summary", {}, "Fix some axes"));
    const grid = h("div", { class: "plan-form" });
    for (const axis of AXES) grid.append(this.text(`fix-${axis.name}`, axis.label, fixHint(axis), axis.hint));
    more.append(grid);
    this.form.append(more);
    this.showPrice();
  }

  /** @param {string} name @param {string} label @param {string} example @param {string} hint */
  text(name, label, example, hint) {
    const input = h("input", {
      type: "text", id: `plan-${name}`, placeholder: example, autocomplete: "off", maxlength: "80",
      spellcheck: "false",
    });
    this.inputs[name] = input;
    input.addEventListener("input", () => this.keep());
    input.addEventListener("keydown", (event) => {
      if (/** @type {KeyboardEvent} */ (event).key === "Enter") this.search();
    });
    return h("div", { class: "field", data: { plan: name } },
      h("label", { for: `plan-${name}`, title: hint }, label), input);
  }

  /** @param {string} name @param {string} label @param {string} hint */
  check(name, label, hint) {
    const input = h("input", { type: "checkbox", id: `plan-${name}` });
    this.inputs[name] = input;
    input.addEventListener("change", () => this.keep());
    return h("div", { class: "field", data: { plan: name } },
      h("label", { class: "plan-check", title: hint }, input, label));
  }

  /** What a field says. @param {string} name */
  value(name) {
    const input = this.inputs[name];
    return input.type === "checkbox" ? (input.checked ? "true" : "") : input.value.trim();
  }

  showPrice() {
    this.inputs.price.closest(".field").hidden = this.inputs.objective.value !== "cost";
  }

  /** Keep what is asked of the search in the link. */
  keep() {
    /** @type {Record<string, string>} */
    const plan = {};
    for (const name of Object.keys(this.inputs)) {
      const text = this.value(name);
      if (text && !(name === "objective" && text === "time")) plan[inLink(name)] = text;
    }
    this.page.setPlan(plan);
  }

  /** Show what the link asks of the search. */
  showKept() {
    const plan = this.page.plan();
    for (const [name, input] of Object.entries(this.inputs)) {
      const text = plan[inLink(name)] ?? (name === "objective" ? "time" : "");
      if (input.type === "checkbox") input.checked = text === "true";
      else if (input.value.trim() !== text) input.value = text;
    }
    this.showPrice();
  }

  listen() {
    this.start.addEventListener("click", () => this.search());
    this.cancel.addEventListener("click", () => this.stop());
    window.addEventListener("pagehide", () => {
      if (this.job) remove(`api/plan/${this.job}`, true).catch(() => {});
    });
  }

  /** @param {any} ask @param {any} estimate */
  async update(ask, estimate) {
    [this.ask, this.estimate] = [ask, estimate];
    const { phase } = ask;
    this.showKept();
    for (const { name, phases } of PLAN) this.inputs[name].closest(".field").hidden = !phases.includes(phase);
    for (const { name, phases } of AXES) {
      this.inputs[`fix-${name}`].closest(".field").hidden = !phases.includes(phase);
    }
    this.showPrice();
    this.inputs.gpus.placeholder = String(estimate.gpus);
    this.inputs.batch.placeholder = String(ask.batch ?? NEEDED[phase].batch);
    this.markNow();
    if (!this.result && !this.job && !this.status.textContent) {
      this.say("Prices every layout of the model on these GPUs, ranks them and says why the others lost.");
    }
    this.found.classList.toggle("other", Boolean(this.result) && this.asked !== this.sameness());
    if (this.result && this.asked !== this.sameness() && !this.job) {
      this.say("This was found for another model, machine or work: search again.");
    }
  }

  /** What a result stands for: a question without its layout. */
  sameness() {
    const asked = { ...this.ask, gpus: null, ...(this.inputs.batch.value ? { batch: null } : {}) };
    for (const field of LAYOUT) delete asked[field];
    return JSON.stringify(asked);
  }

  // ------------------------------------------------------------------------------ searching

  /** Return the question of the search: the page's, with the layout free. */
  question() {
    /** @type {Record<string, any>} */
    const sent = { ...this.ask, gpus: this.estimate.gpus };
    for (const field of LAYOUT) delete sent[field];
    for (const { name, kind } of PLAN) {
      const text = this.value(name);
      if (!text || this.inputs[name].closest(".field").hidden) continue;
      sent[name] = ["whole", "number", "flag"].includes(kind) ? valueOf(text) : text;
    }
    const fixed = this.fixed();
    if (Object.keys(fixed).length) sent.fix = fixed;
    return sent;
  }

  fixed() {
    /** @type {Record<string, any>} */
    const fix = {};
    for (const { name } of AXES) {
      const input = this.inputs[`fix-${name}`];
      const text = input.value.trim();
      if (!text || input.closest(".field").hidden) continue;
      fix[name] = text === "all" ? "all" : text.split(/[,\s]+/).filter(Boolean).map(valueOf);
    }
    return fix;
  }

  async search() {
    if (!this.ask) return;
    const turn = ++this.turn;
    if (this.job) await remove(`api/plan/${this.job}`).catch(() => {});
    const asked = this.sameness();
    this.running(true);
    this.say("Starting…");
    try {
      const { job } = await post("api/plan", this.question());
      this.job = job;
      const end = await this.follow(job, turn);
      if (turn === this.turn) this.ended(end, asked);
    } catch (error) {
      if (turn !== this.turn || isAbort(error)) return;
      this.fail(/** @type {any} */ (error));
    }
  }

  /** @param {string} job @param {number} turn */
  async follow(job, turn) {
    for (let i = 0; ; i += 1) {
      const now = await get(`api/plan/${job}`, undefined, true);
      if (turn !== this.turn || !WAITING.includes(now.state)) return now;
      this.showProgress(now);
      await new Promise((resolve) => {
        window.setTimeout(resolve, POLL_MS[Math.min(i, POLL_MS.length - 1)]);
      });
    }
  }

  /** @param {any} now */
  showProgress(now) {
    const { done = 0, cells = 0, seconds = 0 } = now;
    if (cells) this.progress.value = done / cells;
    const speed = now.layouts_per_s ?? (seconds > 0 ? done / seconds : 0);
    this.say(now.state === "waiting" ? "Waiting for another search to end…"
      : `${format.whole(done)} of ${format.whole(cells)} layouts, ${format.whole(speed)} a second`);
  }

  /** @param {any} end @param {string} asked */
  ended(end, asked) {
    this.running(false);
    if (end.state === "done" && end.result) {
      this.progress.value = 1;
      this.result = end.result;
      this.asked = asked;
      this.show(end.result);
    } else if (end.state === "cancelled") {
      this.say("Cancelled.");
    } else {
      this.fail(new Error(end.detail ?? "the search failed"));
      if (end.reasons) this.found.append(reasonsTable(end.reasons));
    }
  }

  async stop() {
    const { job } = this;
    this.turn += 1;
    this.running(false);
    this.say("Cancelled.");
    announce("search cancelled");
    if (job) await remove(`api/plan/${job}`).catch(() => {});
  }

  /** @param {boolean} on */
  running(on) {
    this.start.disabled = on;
    this.cancel.disabled = !on;
    this.progress.value = 0;
    if (!on) this.job = null;
    this.found.toggleAttribute("data-stale", on);
  }

  /** @param {string} line */
  say(line) {
    this.status.textContent = line;
  }

  /** @param {any} error */
  fail(error) {
    this.running(false);
    this.say("");
    this.found.replaceChildren(h("p", { class: "error", role: "alert" }, format.told(error.message)));
    if (error.body?.reasons) this.found.append(reasonsTable(error.body.reasons));
  }

  // -------------------------------------------------------------------------------- showing

  /** @param {any} result */
  show(result) {
    const speed = result.seconds > 0 ? `, ${format.whole(result.considered / result.seconds)} layouts/s` : "";
    this.say(`${format.whole(result.feasible)} of ${format.whole(result.considered)} layouts feasible; `
      + `${format.significant(result.seconds, 2)} s${speed}`);
    announce(this.status.textContent ?? "");
    const front = h("div", { id: "plan-front" });
    this.found.replaceChildren(...(result.best.length ? this.table.show(result) : nothing(result)));
    this.found.append(...sentences(result), front, h("div", { class: "plan-parts" },
      result.losses?.length ? lossesTable(result) : null,
      result.sensitivity?.length ? sensitivityTable(result) : null,
      result.rejected?.length ? reasonsTable(result.rejected) : null));
    this.markNow();
    if (result.front?.length > 1) this.drawFront(front, result);
    else if (result.best.length) {
      front.append(h("p", { class: "hint" }, "No layout gives more of one thing for less of another: "
        + `${format.layoutShort(result.best[0].layout)} is best in every respect, so there is no front to draw.`));
    }
  }

  /** @param {HTMLElement} root @param {any} result */
  async drawFront(root, result) {
    try {
      const { frontChart } = await import("./charts.js");
      root.append(h("h2", {}, "Pareto front"));
      const place = h("div", {});
      root.append(place);
      frontChart(place, this.page, result, (/** @type {any} */ each) => this.load(each));
    } catch (error) {
      console.warn(error);
      root.append(h("p", { class: "hint" }, "The picture of the front cannot be drawn here."));
    }
  }

  /** Return the change to the page's question that a row stands for. @param {any} row */
  patchOf(row) {
    /** @type {Record<string, any>} */
    const patch = { gpus: row.gpus, dp: null };
    for (const field of LAYOUT) {
      const value = row.layout[field];
      if (field !== "dp") patch[field] = value === OPTIONS[field].default || value === undefined ? null : value;
    }
    if (!patch.tp) patch.tp = 1;
    if (row.cluster && !this.ask?.profile && row.cluster !== this.ask?.on) patch.on = row.cluster;
    if (row.network !== undefined && row.network !== this.estimate?.network) patch.network = row.network;
    for (const name of OWN) {
      if (row[name] && row[name] !== this.ask?.[name] && row[name] !== shownOf(this.estimate, name)) {
        patch[name] = row[name];
      }
    }
    return patch;
  }

  /** Show a row's layout in the headline. @param {any} row @param {Record<string, any>} [more] */
  load(row, more = {}) {
    this.page.set({ ...this.patchOf(row), ...more }, { push: true });
    announce(`${format.layoutShort(row.layout)} loaded`);
  }

  /** Mark the row that the page shows. */
  markNow() {
    if (this.estimate) this.table.mark(this.estimate);
  }

  /** @returns {any[][]} */
  rows() {
    if (!this.result) throw new Error("nothing has been searched yet");
    const head = ["rank", "model", "cluster", "network", "gpus", "batch", ...LAYOUT, "time_s", "low_s",
      "high_s", "tokens_per_s", "tokens_per_s_per_gpu", "memory_bytes", "mfu", "comm_share", "score"];
    return [head, ...this.result.best.map((/** @type {any} */ row, /** @type {number} */ i) =>
      head.map((name) => (name === "rank" ? i + 1 : row[name] ?? row.layout[name])))];
  }
}

/** Return what a field is called in the link. @param {string} name */
const inLink = (name) => (name.startsWith("fix-") ? name.replace("-", "_") : `plan_${name}`);

/** Return what an estimate has of a field of the question. @param {any} estimate @param {string} name */
function shownOf(estimate, name) {
  const { model, software, workload = {} } = estimate ?? {};
  return { ...workload, model, software, batch: workload.batch ?? workload.global_batch }[name];
}

/** What an empty field of an axis shows. @param {import("./state.js").Option} axis */
function fixHint({ fixed, default: usual, choices }) {
  if (fixed) return `${usual ?? "none"}; all`;
  return choices.length ? choices.slice(0, 2).join(", ") : "all";
}

/** @param {string} word */
function valueOf(word) {
  if (/^\d+(\.\d+)?$/.test(word)) return Number(word);
  return word === "true" ? true : word === "false" ? false : word;
}

/** @param {any} result */
function sentences(result) {
  const { stability, crossovers = [], relaxations = [], notes = [] } = result;
  const lines = crossovers.map((/** @type {any} */ each) => each.words);
  if (stability) {
    lines.push(`Robustness: stays first in ${format.whole(stability.first_stays_pct)} % of `
      + `${stability.draws} Monte Carlo draws of the model error; ${format.fixed(stability.changed, 1)} of the `
      + `${stability.shown} shown leave the top on average.`);
  }
  if (result.best.length) {
    lines.push(...relaxations.map((/** @type {any} */ each) => `feasible: ${each.words}`));
  }
  lines.push(...notes);
  return lines.length ? [h("ul", { class: "plan-lines plan-sentence", id: "plan-words" },
    lines.map((/** @type {string} */ line) => h("li", {}, line)))] : [];
}

/** @param {any} result */
function nothing(result) {
  const { smallest, relaxations = [] } = result;
  return [
    h("p", { class: "error", role: "alert" }, `Nothing is feasible among ${format.whole(result.considered)} layouts.`),
    smallest && h("p", {}, `The smallest layout, ${format.layoutShort(smallest.layout)}, needs `
      + `${format.bytes(smallest.memory_bytes)} of ${format.bytes(smallest.capacity_bytes)}.`),
    ...relaxations.map((/** @type {any} */ each) => h("p", {},
      `Feasible: ${each.words}: ${format.time(each.time_s)} a step, ${format.layoutShort(each.layout)}`)),
  ].filter(Boolean);
}

/** @param {string} caption @param {string[]} heads @param {any[][]} rows @param {string} [name] @param {number} [left] */
function table(caption, heads, rows, name, left = 0) {
  return h("div", { class: "table-wrap" }, h("table", { class: "rows", id: name },
    h("caption", {}, caption),
    h("thead", {}, h("tr", {}, heads.map((head, i) =>
      h("th", { scope: "col", class: i === left ? "left" : null }, head)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell, i) =>
      h("td", { class: i === left ? "left wrap" : null }, cell)))))));
}

/** @param {any[]} reasons */
function reasonsTable(reasons) {
  return table("Rejected, by first reason", ["reason", "layouts"],
    reasons.map((each) => [each.reason, format.whole(each.count)]), "plan-reasons");
}

/** What a score is in, of objectives other than the time of a step. @type {Record<string, [string, (score: number) => string]>} */
const SCORES = {
  throughput: ["GPU time per token", format.time],
  cost: ["cost of 1M tokens", (score) => format.significant(1e6 * score, 4)],
  energy: ["energy per token", format.energy],
};

/** What the runner-up loses, part by part: each has its share of the score. @param {any} result */
function lossesTable(result) {
  const [first, second] = result.best;
  const [unit, form] = SCORES[result.objective] ?? ["step time", format.time];
  const [one, two] = [first, second ?? first].map((each) =>
    (result.objective in SCORES ? each.score / each.time_s : 1));
  const rows = result.losses
    .map((/** @type {any} */ each) => [each.part, one * each.winner_s, two * each.other_s])
    .filter((/** @type {any} */ [, best, other]) => Math.abs(other - best) > TRIFLE * one * first.time_s)
    .sort((/** @type {any} */ a, /** @type {any} */ b) => Math.abs(b[2] - b[1]) - Math.abs(a[2] - a[1]));
  return table(`What the runner-up loses or gains, in ${unit}`, ["part", "best", "runner-up", "lost"],
    rows.map((/** @type {any} */ [part, best, other]) => [format.partName(part), form(best), form(other),
      `${other > best ? "+" : "−"}${form(Math.abs(other - best))}`]), "plan-losses");
}

/** @param {any} result */
function sensitivityTable(result) {
  return table("10 % more of it makes the best", ["of what", "faster", "time"],
    result.sensitivity.map((/** @type {any} */ each) => [
      each.note ? [each.what, h("small", {}, each.note)] : each.what,
      `${format.fixed(each.faster_pct, 1)} %`, format.time(each.time_s)]), "plan-sensitivity");
}
