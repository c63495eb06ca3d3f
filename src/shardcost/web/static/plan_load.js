// @ts-check
// Deployments under load: which holds most requests for each GPU within TTFT and TPOT. Lengths and
// limits are those of the Load tab, in the link under load_<option>.

import { announce, byId, h } from "./dom.js";
import * as format from "./format.js";
import { SearchJob } from "./search_job.js";
import { LAYOUT, LOAD, OPTIONS } from "./state.js";

const NONE = "none"; // in a link: a field that begins with a value, and was emptied
const DEGREES = ["tp", "cp", "ep", "pp", "dp"];
/** What holds where a load is not given. @type {Record<string, string>} */
const OTHERWISE = { rate: "the highest", users: "by rate" };

export class PlanLoad {
  /** @param {HTMLElement} root @param {any} page */
  constructor(root, page) {
    this.page = page;
    /** @type {any} */
    this.ask = null;
    /** @type {any} */
    this.estimate = null;
    /** @type {any} */
    this.result = null;
    /** @type {Record<string, any>} */
    this.inputs = {};
    this.found = h("div", { id: "plan-load-found" });
    this.job = new SearchJob("plan-load", "api/plan/load", "deployments", {
      question: () => this.question(),
      begun: (on) => this.found.toggleAttribute("data-stale", on),
      done: (result) => this.show(result),
      failed: (line) => this.found.replaceChildren(h("p", { class: "error", role: "alert" }, format.told(line))),
    });
    const options = LOAD.options.filter((/** @type {any} */ { name }) => LOAD.planned.includes(name));
    root.append(h("div", { class: "plan-form" }, this.field("gpus", OPTIONS.gpus, "plan_gpus"),
      options.map((/** @type {any} */ option) => this.field(option.name, option, `load_${option.name}`))),
      this.job.bar, this.found);
  }

  /** @param {string} name @param {any} option @param {string} key in the link */
  field(name, option, key) {
    const input = h("input", {
      type: "text", id: `plan-load-${name}`, autocomplete: "off", spellcheck: "false", maxlength: "80",
      placeholder: OTHERWISE[name] || option.example || format.unflagged(option.otherwise || String(option.default ?? "")), data: { key },
    });
    this.inputs[name] = input;
    input.addEventListener("input", () => this.keep(name));
    input.addEventListener("keydown", (event) => {
      if (/** @type {KeyboardEvent} */ (event).key === "Enter") this.job.search();
    });
    return h("div", { class: "field" }, h("label", { for: input.id, title: option.hint }, option.label), input);
  }

  /** Keep a field in the link. @param {string} name */
  keep(name) {
    const text = this.inputs[name].value.trim();
    const { key } = this.inputs[name].dataset;
    if (name === "gpus") {
      const { plan_gpus: _, ...plan } = this.page.plan();
      this.page.setPlan(text ? { ...plan, [key]: text } : plan);
    } else this.page.setView({ [key]: text === (LOAD.first[name] ?? "") ? "" : text || NONE });
  }

  /** @param {any} ask @param {any} estimate */
  async update(ask, estimate) {
    [this.ask, this.estimate] = [ask, estimate];
    for (const [name, input] of Object.entries(this.inputs)) {
      const kept = name === "gpus" ? this.page.plan().plan_gpus : this.page.view(`load_${name}`) || LOAD.first[name];
      const text = !kept || kept === NONE ? "" : kept;
      if (input !== document.activeElement && input.value !== text) input.value = text;
    }
    this.inputs.gpus.placeholder = String(estimate.gpus);
    if (!this.result && !this.job.job && !this.job.status.textContent) {
      this.job.say("Which workers, and how many, hold most requests for each GPU within the limits of latency.");
    }
  }

  /** Return the question: model, machine, engine and formats of the page, and the load. */
  question() {
    if (!this.ask) return null;
    /** @type {Record<string, any>} */
    const sent = {};
    for (const name of ["config", "profile"]) if (this.ask[name]) sent[name] = this.ask[name];
    for (const name of LOAD.taken) {
      const training = this.ask.phase === "train" && (name === "software" || OPTIONS[name].group === "workload");
      if (this.ask[name] !== undefined && !training && !LAYOUT.includes(name)) sent[name] = this.ask[name];
    }
    for (const [name, input] of Object.entries(this.inputs)) {
      const text = input.value.trim();
      const plain = ["percentile", "users", "rate"].includes(name) && /^\d+(\.\d+)?$/.test(text);
      if (text) sent[name] = plain ? Number(text) : text;
    }
    sent.gpus = this.inputs.gpus.value.trim() || this.estimate.gpus;
    return sent;
  }

  /** @param {any} result */
  show(result) {
    this.result = result;
    this.job.say(`${format.whole(result.feasible)} of ${format.whole(result.considered)} workers feasible, `
      + `${format.whole(result.simulations)} simulations; ${format.significant(result.seconds, 2)} s`);
    announce(this.job.status.textContent ?? "");
    const [best] = result.best;
    this.found.replaceChildren(...(best ? [sentence(result, best), this.table(result)] : [nothing(result)]));
  }

  /** @param {any} result */
  table(result) {
    const p = `p${result.limits.percentile ?? 90}`;
    /** @type {Array<[string, (row: any) => any]>} */
    const columns = [
      ["requests/s", (row) => format.significant(row.goodput_requests_per_s, 3)],
      ["per GPU", (row) => format.significant(row.per_gpu, 3)],
      [`TTFT ${p}`, (row) => latency(row.ttft_ms, p)],
      [`TPOT ${p}`, (row) => latency(row.tpot_ms, p)],
      ["tokens/s/GPU", (row) => format.rate(row.tokens_per_s_per_gpu)],
      ["GPUs", (row) => format.whole(row.gpus)],
      ["first limit", (row) => row.limit ?? ""],
    ];
    return h("div", { class: "table-wrap", tabindex: "0", role: "region", "aria-label": "The best deployments" },
      h("table", { class: "rows", id: "plan-load-table" },
        h("caption", {}, "The best deployments: choose one to see it under load"),
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "#"), h("th", { scope: "col", class: "left" }, "deployment"),
          columns.map(([name]) => h("th", { scope: "col" }, name)))),
        h("tbody", {}, result.best.map((/** @type {any} */ row, /** @type {number} */ i) =>
          h("tr", { data: { row: i + 1 } }, h("td", {}, i + 1),
            h("th", { scope: "row", class: "left" },
              h("button", { type: "button", class: "load", title: "Show it in the Load tab", on: { click: () => this.load(row) } },
                nameOf(row)), h("small", {}, detailsOf(row))),
            columns.map(([, cell]) => h("td", {}, cell(row))))))));
  }

  /** Show a deployment in the Load tab. @param {any} row */
  load(row) {
    const pools = Object.fromEntries(row.pools.map((/** @type {any} */ pool) => [pool.pool, pool]));
    const serving = pools.serving ?? pools.decode;
    const degrees = degreesOf(serving.layout);
    /** @type {Record<string, any>} */
    const patch = {};
    const { cluster, network, software } = this.estimate;
    if (serving.cluster !== cluster) patch.on = serving.cluster;
    if (serving.network !== network) patch.network = serving.network;
    if (row.software !== software || this.ask.phase === "train") patch.software = row.software;
    for (const field of LAYOUT) patch[field] = null;
    Object.assign(patch, degrees, { dp: null, gpus: serving.gpus, ...row.formats });
    if (this.ask.phase === "train") patch.phase = "decode";
    /** @type {Record<string, string>} */
    const view = { load_workers: "", load_prefill_workers: "", load_decode_workers: "", load_rate: "" };
    for (const name of DEGREES) if (name !== "cp") view[`load_prefill_${name}`] = "";
    if (pools.prefill) {
      view.load_prefill_workers = String(pools.prefill.workers);
      view.load_decode_workers = String(serving.workers);
      for (const [name, value] of Object.entries(degreesOf(pools.prefill.layout))) view[`load_prefill_${name}`] = String(value);
    } else view.load_workers = String(serving.workers);
    this.page.setView(view);
    this.page.set(patch, { push: true });
    announce(`${nameOf(row)} loaded`);
    byId("tab-load").click();
    byId("tab-load").focus();
  }

  /** @returns {any[][]} */
  rows() {
    if (!this.result) throw new Error("nothing has been searched yet");
    const head = ["rank", "deployment", "software", "gpus", "goodput_requests_per_s", "per_gpu", "tokens_per_s_per_gpu", "limit", "command"];
    return [head, ...this.result.best.map((/** @type {any} */ row, /** @type {number} */ i) =>
      head.map((name) => ({ rank: i + 1, deployment: nameOf(row) })[name] ?? row[name]))];
  }
}

/** Return the degrees of a layout in short form. @param {string} short */
function degreesOf(short) {
  return Object.fromEntries([...short.matchAll(/(tp|cp|ep|pp|dp)(\d+)/g)].map(([, name, value]) => [name, Number(value)]));
}

/** @param {any} row */
const nameOf = (row) => row.pools.map((/** @type {any} */ pool) =>
  `${pool.workers} x ${pool.pool === "serving" ? "" : `${pool.pool} `}${pool.layout}`).join(" + ");

/** @param {any} row */
function detailsOf(row) {
  const places = [...new Set(row.pools.map((/** @type {any} */ pool) => pool.cluster))].join(", ");
  return [row.software, places, ...Object.values(row.formats), row.confirmed ? "confirmed by a longer simulation" : "",
    row.simulated ? "" : "closed form"].filter(Boolean).join(", ");
}

/** @param {Record<string, number|null>} held @param {string} p */
const latency = (held, p) => {
  const value = held[p] ?? held.p90 ?? held.mean;
  return value === null || value === undefined ? "–" : format.time(value / 1e3);
};

/** @param {any} result @param {any} best */
function sentence(result, best) {
  const { runner_up: second } = result;
  const behind = second ? ` The runner-up needs ${format.percent(second.behind)} more GPUs for each request.` : "";
  return h("p", { class: "plan-sentence" }, h("b", {}, nameOf(best)),
    ` holds ${format.significant(best.goodput_requests_per_s, 3)} requests/s on `
    + `${format.whole(best.gpus)} GPU${best.gpus > 1 ? "s" : ""}${best.limit ? `; first limit: ${best.limit}` : ""}.${behind}`);
}

/** @param {any} result */
function nothing(result) {
  const near = result.nearest;
  return h("div", {}, h("p", { class: "error", role: "alert" }, "No deployment keeps the limits."),
    near && h("p", {}, `Nearest: ${nameOf(near)}, first limit ${near.limit}.`));
}
