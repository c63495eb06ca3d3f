// @ts-check
// The best layouts of a search as a table: sorted by a column, filtered by words and degrees, a row
// loaded into the headline, two rows compared.

import { isAbort, post } from "./api.js";
import { announce, byId, h, number, refill } from "./dom.js";
import { cases, comparison, heldLimit, timelines } from "./compare.js";
import * as format from "./format.js";
import { body, patched } from "./state.js";

const DEGREES = ["tp", "cp", "ep", "pp", "dp"];

/**
 * @typedef {{name: string, left?: boolean, head?: boolean, key?: (row: any, i: number) => any,
 *   cell: (row: any, i: number, patch: any, load: () => void) => any}} Column
 */

/** The table and what stands around it. */
export class PlanTable {
  /**
   * @param {any} page
   * @param {{load: (row: any, more?: any) => void, patchOf: (row: any) => any, ask: () => any}} plan
   */
  constructor(page, plan) {
    this.page = page;
    this.plan = plan;
    /** @type {any} */
    this.result = null;
    /** @type {any} */
    this.now = null;
    /** @type {Column[]} */
    this.columns = [];
    /** @type {{column: string, down: boolean}|null} */
    this.order = null;
    /** Ranks of the rows that are compared. @type {number[]} */
    this.chosen = [];
    /** @type {AbortController|null} */
    this.control = null;
    this.filter = h("input", { type: "text", id: "plan-filter", autocomplete: "off", spellcheck: "false", maxlength: "80", placeholder: "e.g. tp8 zero 1" });
    this.filter.addEventListener("input", () => this.fill());
    this.only = h("div", { class: "plan-tools", id: "plan-only" });
    this.count = h("span", { id: "plan-count", role: "status" });
    this.heads = h("tr", {});
    this.body = h("tbody", {});
    page.followers.add((/** @type {any} */ now) => this.mark(now));
    this.compared = h("section", { id: "plan-compare", hidden: true, "aria-label": "Two layouts compared" });
  }

  /** Return the table of a result, its tools and the comparison of two rows. @param {any} result */
  show(result) {
    this.result = result;
    [this.order, this.chosen] = [null, []];
    this.filter.value = "";
    this.columns = columns(result, this.plan.ask());
    this.fillOnly();
    this.fillHeads();
    this.fill();
    this.showCompared();
    const several = result.best.length > 1;
    return [
      largest(result, (row, more) => this.plan.load(row, more)),
      several && h("div", { class: "plan-tools" },
        h("div", { class: "field grow" }, h("label", { for: "plan-filter" }, "Filter the layouts"), this.filter),
        this.only, this.count),
      h("div", { class: "table-wrap", tabindex: "0", role: "region", "aria-label": "The best layouts" },
        h("table", { class: "rows", id: "plan-table" },
          h("caption", {}, `The best by ${result.unit}: choose one to load it, or tick two to compare them`),
          h("thead", {}, this.heads), this.body)),
      this.compared,
    ].filter(Boolean);
  }

  /** A list for each degree that differs. */
  fillOnly() {
    this.only.replaceChildren(...DEGREES.flatMap((name) => {
      const values = [...new Set(this.result.best.map((/** @type {any} */ row) => row.layout[name]))];
      if (values.length < 2) return [];
      const list = h("select", { id: `plan-only-${name}`, data: { degree: name } }, h("option", { value: "" }, "any"),
        values.sort((a, b) => a - b).map((value) => h("option", { value: String(value) }, String(value))));
      list.addEventListener("change", () => this.fill());
      return [h("div", { class: "field" }, h("label", { for: list.id }, name), list)];
    }));
  }

  fillHeads() {
    this.heads.replaceChildren(h("th", { scope: "col", class: "choose" }, h("span", { class: "unseen" }, "compare")),
      ...this.columns.map((column) => h("th", {
        scope: "col", class: column.left ? "left" : null,
        "aria-sort": this.order?.column !== column.name ? "none" : this.order.down ? "descending" : "ascending",
      }, h("button", { type: "button", class: "sort", data: { sort: column.name }, on: { click: () => this.sortBy(column) } },
        column.name))));
  }

  /** Sort by a column: up, down, and as the search ranked them. @param {Column} column */
  sortBy(column) {
    const same = this.order?.column === column.name;
    this.order = !same ? { column: column.name, down: false } : this.order?.down ? null : { column: column.name, down: true };
    this.fillHeads();
    this.fill();
    /** @type {HTMLElement|null} */ (this.heads.querySelector(`[data-sort="${CSS.escape(column.name)}"]`))?.focus();
    announce(this.order ? `sorted by ${column.name}, ${this.order.down ? "descending" : "ascending"}` : "in the order of the search");
  }

  /** Return the rows that are shown, each with its rank from 0. @returns {Array<[any, number]>} */
  shown() {
    const words = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const degrees = /** @type {HTMLSelectElement[]} */ ([...this.only.querySelectorAll("select")])
      .filter((list) => list.value);
    const rows = this.result.best.map((/** @type {any} */ row, /** @type {number} */ i) => [row, i])
      .filter((/** @type {[any, number]} */ [row]) => degrees.every((list) =>
        String(row.layout[list.dataset.degree ?? ""]) === list.value))
      .filter((/** @type {[any, number]} */ [row]) => words.every((word) => textOf(row).includes(word)));
    const column = this.columns.find(({ name }) => name === this.order?.column);
    if (!column?.key) return rows;
    const { key } = column;
    const sign = this.order?.down ? -1 : 1;
    return rows.sort((/** @type {[any, number]} */ a, /** @type {[any, number]} */ b) => sign * ordered(key(...a), key(...b)));
  }

  fill() {
    const rows = this.shown();
    this.count.textContent = rows.length === this.result.best.length ? `${rows.length} layouts`
      : `${rows.length} of ${this.result.best.length} layouts`;
    refill(this.body, ...rows.map(([row, i]) => this.line(row, i)));
    if (this.now) this.mark(this.now);
  }

  /** @param {any} row @param {number} i */
  line(row, i) {
    const name = format.layoutShort(row.layout);
    const box = h("input", { type: "checkbox", "aria-label": `Compare ${i + 1}, ${name}`, data: { compare: i + 1 } });
    box.checked = this.chosen.includes(i);
    box.addEventListener("change", () => this.choose(i));
    const line = h("tr", { class: box.checked ? "pick chosen" : "pick", data: { row: i + 1, layout: name } },
      h("td", { class: "choose" }, h("label", {}, box)),
      this.columns.map((column) => h(column.head ? "th" : "td",
        { class: column.left ? "left" : null, scope: column.head ? "row" : null },
        column.cell(row, i, this.plan.patchOf(row), () => this.plan.load(row)))));
    line.addEventListener("click", (event) => {
      if (!(/** @type {Element} */ (event.target).closest("button, label, input"))) this.plan.load(row);
    });
    return line;
  }

  /** Mark the row that the page shows. @param {any} now the estimate of the page */
  mark(now) {
    this.now = now;
    if (!this.result) return;
    const shown = this.result.best.find((/** @type {any} */ row) => isOf(row, now));
    for (const line of /** @type {NodeListOf<HTMLElement>} */ (this.body.querySelectorAll("tr"))) {
      const same = this.result.best[Number(line.dataset.row) - 1] === shown;
      line.classList.toggle("now", same);
      if (same) line.setAttribute("aria-current", "true");
      else line.removeAttribute("aria-current");
    }
    const limits = byId("headline-limits");
    limits.hidden = !shown?.limits?.length;
    limits.replaceChildren(...(shown?.limits ?? []).map((/** @type {any} */ each) =>
      h("div", {}, heldLimit(each))));
  }

  // ------------------------------------------------------------------------------ comparing

  /** Choose a row to compare, or leave it out; of three, the first goes. @param {number} i */
  choose(i) {
    this.chosen = this.chosen.includes(i) ? this.chosen.filter((each) => each !== i) : [...this.chosen, i].slice(-2);
    this.showCompared();
  }

  async showCompared() {
    for (const line of /** @type {NodeListOf<HTMLElement>} */ (this.body.querySelectorAll("tr"))) {
      const chosen = this.chosen.includes(Number(line.dataset.row) - 1);
      line.classList.toggle("chosen", chosen);
      /** @type {HTMLInputElement} */ (line.querySelector("input")).checked = chosen;
    }
    this.control?.abort();
    this.compared.hidden = this.chosen.length < 2;
    if (this.compared.hidden) return;
    const control = new AbortController();
    this.control = control;
    const rows = this.chosen.map((i) => this.result.best[i]);
    const asked = rows.map((row, i) => ({
      name: `#${this.chosen[i] + 1} ${format.layoutShort(row.layout)}${rows[0].batch !== rows[1].batch ? `, batch ${row.batch}` : ""}`,
      ask: body(patched(this.plan.ask(), this.plan.patchOf(row))),
    }));
    try {
      const found = await Promise.all(asked.map(({ ask }) => post("api/estimate", ask, control.signal)));
      if (control.signal.aborted) return;
      const sides = /** @type {[any, any]} */ (found.map((each, i) =>
        ({ name: asked[i].name, short: `#${this.chosen[i] + 1}`, found: each, limits: rows[i].limits })));
      const place = h("div", { class: "comparison-timelines" });
      this.compared.replaceChildren(
        h("div", { class: "compare-head" }, h("h2", {}, `${asked[0].name} and ${asked[1].name}`),
          h("button", { type: "button", class: "small", id: "plan-compare-close", on: { click: () => this.close() } }, "Close")),
        ...extras(rows), comparison(sides), place);
      announce(`${asked[0].name} and ${asked[1].name} compared`);
      await timelines(place, this.page, asked, control.signal);
    } catch (error) {
      if (isAbort(error)) return;
      this.compared.replaceChildren(h("p", { class: "error", role: "alert" },
        format.told(/** @type {Error} */ (error).message)));
    }
  }

  close() {
    const [first] = this.chosen;
    this.chosen = [];
    this.showCompared();
    /** @type {HTMLElement|null} */ (this.body.querySelector(`[data-compare="${first + 1}"]`))?.focus();
  }
}

/** Is an answer that of a row? The time tells it from the same layout of another question. @param {any} row @param {any} now */
function isOf(row, now) {
  return row.gpus === now.gpus && JSON.stringify(row.layout) === JSON.stringify(now.layout)
    && Math.abs(row.time_s - now.time_s) <= 1e-9 * now.time_s && row.model === now.model;
}

/** What differs between two layouts beside their degrees. @param {any[]} rows */
function extras(rows) {
  const said = rows.map((row) => format.layoutExtras(row.layout));
  return said.map((each, i) => h("p", { class: "hint" }, `${format.layoutShort(rows[i].layout)}: ${each || "nothing else"}`))
    .filter(() => said.some(Boolean));
}

/** Say which others have the same degrees. @param {any} row */
function variants(row) {
  const { count = 0, differ_in: names = [] } = row.variants ?? {};
  return count > 0 && h("small", {}, `${format.whole(count)} more with these degrees, by ${names.map(format.words).join(", ")}`);
}

/** Return what the filter looks at. @param {any} row */
function textOf(row) {
  const { layout } = row;
  const degrees = DEGREES.map((name) => `${name}${layout[name] ?? 1}`);
  return [format.layoutShort(layout), format.layoutExtras(layout), ...degrees, row.model, row.cluster, row.network,
    row.software, row.dtype, row.cache_dtype, `batch${row.batch}`].filter(Boolean).join(" ").toLowerCase();
}

/** @param {any} one @param {any} other */
function ordered(one, other) {
  if (typeof one === "number" && typeof other === "number") return one - other;
  return String(one ?? "").localeCompare(String(other ?? ""), "en", { numeric: true });
}

/** The largest batch that keeps the limits. @param {any} result @param {(row: any, more: any) => void} load */
function largest(result, load) {
  const row = result.best[0];
  const most = row?.largest_batch;
  if (!most || most.batch === row.batch) return null;
  return h("div", { id: "plan-largest" },
    h("p", {}, `Largest batch within the limits with ${format.layoutShort(row.layout)}: `,
      h("b", {}, format.whole(most.batch)), ` at ${format.time(most.time_s)}, `
      + `${format.rate(most.tokens_per_s_per_gpu)} tokens/s/GPU, ${format.bytes(most.memory_bytes)}.`),
    h("button", {
      type: "button", class: "primary", id: "plan-largest-load", on: { click: () => load(row, { batch: most.batch }) },
    }, `Load batch ${format.whole(most.batch)}`));
}

/** Return the columns that say something. @param {any} result @param {any} ask @returns {Column[]} */
function columns(result, ask) {
  const { best } = result;
  /** @param {string} name */
  const varies = (name) => new Set(best.map((/** @type {any} */ each) => each[name])).size > 1;
  const [label, figure] = { train: ["step", "time_s"], prefill: ["TTFT", "ttft_s"], decode: ["TPOT", "tpot_s"] }[
    /** @type {"train"} */ (ask.phase)];
  /** @param {string} name @param {string} key @param {(value: any) => any} [form] @param {boolean} [left] @returns {Column|false} */
  const own = (name, key, form = (value) => value, left = true) =>
    varies(key) && { name, left, key: (row) => row[key], cell: (row) => form(row[key]) };
  /** @param {string} name @param {string} key @param {(value: number) => string} form @returns {Column} */
  const asked = (name, key, form) => ({
    name,
    key: (row) => row[key],
    cell: (row, _i, patch) => (row[key] === null || row[key] === undefined ? "" :
      number(form(row[key]), key, { ask: patch, label: `${format.layoutShort(row.layout)} ${name}` })),
  });
  /** @type {(Column|false)[]} */
  const all = [
    { name: "#", key: (_row, i) => i, cell: (_row, i) => i + 1 },
    { name: "layout", left: true, head: true, key: (row) => format.layoutShort(row.layout), cell: (row, _i, _patch, load) => [
      h("button", { type: "button", class: "load", title: "Load this layout", on: { click: load } },
        format.layoutShort(row.layout)),
      h("small", {}, format.layoutExtras(row.layout)), variants(row)] },
    own("model", "model"),
    own("machine", "cluster"),
    own("network", "network"),
    own("engine", "software"),
    own("dtype", "dtype"),
    own("KV cache", "cache_dtype"),
    own("sequence", "sequence_length", format.whole, false),
    own("prompt", "prompt_tokens", format.whole, false),
    own("context", "context_tokens", format.whole, false),
    own("GPUs", "gpus", format.whole, false),
    own("batch", "batch", format.whole, false),
    { name: label, key: (row) => row[figure] ?? row.time_s, cell: (row, _i, patch) => [
      number(format.time(row[figure] ?? row.time_s), figure, { ask: patch, label: format.layoutShort(row.layout) }),
      row.low_s ? h("small", {}, format.ends(row.low_s, row.high_s)) : null] },
    best.some((/** @type {any} */ each) => each.limits?.length) && {
      name: "limit holds in", left: true,
      key: (row) => Math.min(...(row.limits ?? []).map((/** @type {any} */ each) => each.holds_share ?? 1)),
      cell: (row) => (row.limits ?? []).map((/** @type {any} */ each) =>
        h("small", { class: "holds" }, row.limits.length > 1 ? `${each.words}: ` : "", cases(each))),
    },
    asked("tokens/s/GPU", "tokens_per_s_per_gpu", format.rate),
    ask.phase === "decode" && asked("tokens/s/user", "tokens_per_s_per_user", format.rate),
    best.some((/** @type {any} */ each) => each.cost_per_million_tokens) && {
      name: "cost of 1M tokens", key: (row) => row.cost_per_million_tokens,
      cell: (row) => format.significant(row.cost_per_million_tokens, 4),
    },
    asked("memory", "memory_bytes", format.bytes),
    asked("MFU", "mfu", format.percent),
    asked("comm.", "comm_share", format.percent),
  ];
  return /** @type {Column[]} */ (all.filter(Boolean));
}
