// @ts-check
// The tab that searches: which layout to run, and why the others lost. The search runs on the
// server as a job that is asked how far it is; leaving the page ends it.

import { announce, h } from "./dom.js";
import * as format from "./format.js";
import { PlanTable } from "./plan_table.js";
import { SearchJob } from "./search_job.js";
import { AXES, LAYOUT, NEEDED, OBJECTIVES, OPTIONS, PLAN, SEVERAL } from "./state.js";

export const id = "plan";
export const title = "Plan";

const TRIFLE = 1e-9; // of the time: rounding, not a loss
/** What rows of one search may have each their own of, beside layout, machine and GPUs. */
const OWN = [
  "model", "software", "batch", "sequence_length", "prompt_tokens", "context_tokens", "dtype", "cache_dtype",
];

const VIEWS = [["", "Layouts of one step"], ["load", "Deployments under load"]];

/** @param {HTMLElement} root @param {any} page */
export function mount(root, page) {
  const places = VIEWS.map(() => h("div", {}));
  /** @type {any[]} */
  const views = [new Plan(places[0], page), null];
  /** @type {[any, any]|null} */
  let last = null;
  const buttons = VIEWS.map(([name, text], i) => h("button", {
    type: "button", id: `plan-for-${name || "layouts"}`, on: { click: () => choose(i) },
  }, text));
  root.append(h("div", { class: "panel-controls" },
    h("div", { class: "switch", role: "group", "aria-label": "what is looked for" }, buttons)), ...places);

  const shown = () => (page.view("plan_for") === VIEWS[1][0] ? 1 : 0);

  /** @param {number} i */
  async function choose(i) {
    page.setView({ plan_for: VIEWS[i][0] });
    if (last) await update(...last);
  }

  /** @param {any} ask @param {any} estimate */
  async function update(ask, estimate) {
    last = [ask, estimate];
    const now = shown();
    places.forEach((place, i) => { place.hidden = i !== now; });
    buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(i === now)));
    if (!views[now]) views[now] = new (await import("./plan_load.js")).PlanLoad(places[now], page);
    await views[now].update(ask, estimate);
  }

  return { update, rows: () => views[shown()].rows() };
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
    /** What the result, and the search under way, are of. @type {string|null} */
    this.asked = null;
    /** @type {string|null} */
    this.asking = null;
    this.loading = false; // the next question is a row of the result
    /** @type {Record<string, any>} */
    this.inputs = {};
    this.form = h("div", { class: "plan-form" });
    this.job = new SearchJob("plan", "api/plan", "layouts", {
      question: () => this.begin(),
      begun: (on) => this.found.toggleAttribute("data-stale", on),
      done: (result) => this.show(result),
      failed: (line, end) => this.fail(line, end),
    });
    this.found = h("div", { id: "plan-found" });
    this.table = new PlanTable(page, {
      load: (row, more) => this.load(row, more), patchOf: (row) => this.patchOf(row), ask: () => this.ask,
    });
    root.append(
      this.form, this.job.bar, this.found,
    );
    this.build();
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
    if (SEVERAL.length) {
      this.form.append(h("details", { class: "more wide", id: "plan-several" },
        h("summary", {}, "Several number formats, engines or lengths"),
        h("div", { class: "plan-form" }, SEVERAL.map(({ name, label, hint }) => this.text(name, label, "", hint)))));
    }
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
      if (/** @type {KeyboardEvent} */ (event).key === "Enter") this.job.search();
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

  /** @param {any} ask @param {any} estimate */
  async update(ask, estimate) {
    [this.ask, this.estimate] = [ask, estimate];
    const { phase } = ask;
    this.showKept();
    for (const { name, phases } of [...PLAN, ...SEVERAL]) {
      this.inputs[name].closest(".field").hidden = !phases.includes(phase);
    }
    for (const { name } of SEVERAL) {
      this.inputs[name].placeholder = String(shownOf(estimate, name) ?? "default");
    }
    for (const { name, phases } of AXES) {
      this.inputs[`fix-${name}`].closest(".field").hidden = !phases.includes(phase);
    }
    this.showPrice();
    this.inputs.gpus.placeholder = String(estimate.gpus);
    this.inputs.batch.placeholder = String(ask.batch ?? NEEDED[phase].batch);
    this.markNow();
    if (this.loading) this.asked = this.sameness();
    this.loading = false;
    if (!this.result && !this.job.job && !this.job.status.textContent) {
      this.job.say("Prices every layout of the model on these GPUs, ranks them and says why the others lost.");
    }
    this.found.classList.toggle("other", Boolean(this.result) && this.asked !== this.sameness());
    if (this.result && this.asked !== this.sameness() && !this.job.job) {
      this.job.say("This was found for another model, machine or work: search again.");
    }
  }

  /** What a result stands for: a question without its layout. */
  sameness() {
    const asked = { ...this.ask, gpus: null };
    for (const { name } of [OPTIONS.batch, ...SEVERAL]) if (this.inputs[name].value) asked[name] = null;
    for (const field of LAYOUT) delete asked[field];
    return JSON.stringify(asked);
  }

  // ------------------------------------------------------------------------------ searching

  /** Return the question of a search that begins: the page's, with the layout free. */
  begin() {
    if (!this.ask) return null;
    this.asking = this.sameness();
    /** @type {Record<string, any>} */
    const sent = { ...this.ask, gpus: this.estimate.gpus };
    for (const field of LAYOUT) delete sent[field];
    for (const { name, kind } of [...PLAN, ...SEVERAL]) {
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

  /** @param {string} line @param {any} end */
  fail(line, end) {
    this.found.replaceChildren(h("p", { class: "error", role: "alert" }, format.told(line)));
    if (end?.reasons) this.found.append(reasonsTable(end.reasons));
  }

  // -------------------------------------------------------------------------------- showing

  /** @param {any} result */
  show(result) {
    [this.result, this.asked] = [result, this.asking];
    const speed = result.seconds > 0 ? `, ${format.whole(result.considered / result.seconds)} layouts/s` : "";
    const bound = result.skipped ? `, ${format.whole(result.skipped)} of them too slow by a lower bound` : "";
    this.job.say(`${format.whole(result.feasible)} of ${format.whole(result.considered)} layouts feasible${bound}; `
      + `${format.significant(result.seconds, 2)} s${speed}`);
    announce(this.job.status.textContent ?? "");
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
    this.loading = true;
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
    const own = OWN.filter((name) => name in (this.result.best[0] ?? {}));
    const head = ["rank", "cluster", "network", "gpus", ...own, ...LAYOUT, "time_s", "low_s",
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
      + `${stability.draws} Monte Carlo draws of the model error${stability.changed >= 0.05
        ? `; on average ${format.fixed(stability.changed, 1)} of the ${stability.shown} shown drop out` : ""}.`);
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
  return h("div", { class: "table-wrap", tabindex: "0", role: "region", "aria-label": caption }, h("table", { class: "rows", id: name },
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
      `${other > best ? "+" : "-"}${form(Math.abs(other - best))}`]), "plan-losses");
}

/** @param {any} result */
function sensitivityTable(result) {
  return table("What 10 % more of a resource brings", ["resource", "faster", "time of the best"],
    result.sensitivity.map((/** @type {any} */ each) => [
      each.note ? [each.what, h("small", {}, each.note)] : each.what,
      `${format.fixed(each.faster_pct, 1)} %`, format.time(each.time_s)]), "plan-sensitivity");
}
