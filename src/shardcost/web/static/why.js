// @ts-check
// Where a number comes from: its formula, with values put in, then one table of its terms with value,
// share, meaning and source, each of which can be asked in turn, and the error behind its interval.
// Beside the page rather than over it, so that what is explained stays in sight.

import { ApiError, isAbort, post } from "./api.js";
import { announce, byId, h, number } from "./dom.js";
import * as format from "./format.js";
import { body, patched } from "./state.js";

/**
 * @typedef {{figure: string, ask?: Record<string, any>|null, collective?: any,
 *   anchor?: Element|null}} Question
 */

/** The drawer, with the way back through what was asked. */
export class Why {
  /** @param {() => Record<string, any>} ask the page's question */
  constructor(ask) {
    this.ask = ask;
    this.dialog = byId("why");
    /** @type {Question[]} */
    this.trail = [];
    /** @type {Element|null} */
    this.opener = null;
    /** @type {AbortController|null} */
    this.control = null;
    this.build();
    document.addEventListener("click", (event) => this.clicked(event));
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.dialog.open && !document.querySelector("dialog:modal")) {
        this.close();
      }
    });
  }

  build() {
    this.back = h("button", {
      type: "button", class: "plain icon", id: "why-back", title: "Back", "aria-label": "Back",
      on: { click: () => this.goBack() },
    }, "‹");
    this.title = h("h2", { id: "why-title", tabindex: "-1" }, "Why");
    this.content = h("div", { class: "why-content", id: "why-content" });
    this.dialog.append(
      h("div", { class: "why-head" }, this.back, this.title,
        h("button", {
          type: "button", class: "plain icon", id: "why-close", title: "Close (Esc)",
          "aria-label": "Close", on: { click: () => this.close() },
        }, "×")),
      this.content,
    );
  }

  /** @param {MouseEvent} event */
  clicked(event) {
    const target = /** @type {Element} */ (event.target);
    const button = /** @type {HTMLElement|null} */ (target.closest?.("[data-why]"));
    if (!button) return;
    event.preventDefault();
    const question = { figure: button.dataset.why ?? "", ...told(button), anchor: button };
    if (this.dialog.contains(button)) this.follow(question);
    else this.open(question);
  }

  /** Open the drawer on a figure. @param {Question} question */
  open(question) {
    this.opener = question.anchor ?? document.activeElement;
    this.trail = [question];
    if (!this.dialog.open) this.dialog.show();
    document.documentElement.classList.add("explaining");
    return this.load(true);
  }

  /** Ask on for a part; it is asked of the same layout as the whole. @param {Question} question */
  follow(question) {
    const whole = this.trail[this.trail.length - 1];
    this.trail.push({ ask: whole?.ask, collective: whole?.collective, ...question });
    return this.load(true);
  }

  goBack() {
    this.trail.pop();
    return this.load(true);
  }

  close() {
    this.control?.abort();
    this.dialog.close();
    document.documentElement.classList.remove("explaining");
    const back = this.opener && this.opener.isConnected ? this.opener : this.likeOpener();
    /** @type {HTMLElement|null} */ (back)?.focus({ preventScroll: true });
  }

  /** The opener may have been drawn anew: return the same number. */
  likeOpener() {
    const figure = this.opener instanceof HTMLElement ? this.opener.dataset.why : null;
    for (const each of document.querySelectorAll("main [data-why]")) {
      if (/** @type {HTMLElement} */ (each).dataset.why === figure) return each;
    }
    return byId("headline");
  }

  /** The page's question has changed: explain the new number. */
  refresh() {
    if (this.dialog.open) this.load(false);
  }

  /** @param {boolean} asked by someone, who is then led there */
  async load(asked) {
    const question = this.trail[this.trail.length - 1];
    if (!question) return;
    this.control?.abort();
    const control = new AbortController();
    this.control = control;
    this.back.hidden = this.trail.length < 2;
    this.content.dataset.stale = "1";
    try {
      const sent = body(patched(this.ask(), question.ask ?? {}));
      const more = question.collective ? { collective: question.collective } : {};
      const why = await post("api/why", { ...sent, ...more, figure: question.figure }, control.signal);
      this.show(why);
      if (asked) announce(`${why.title}: ${why.text}`);
    } catch (error) {
      if (isAbort(error)) return;
      this.fail(question, /** @type {ApiError} */ (error));
    }
    delete this.content.dataset.stale;
    if (asked) this.title.focus({ preventScroll: true });
  }

  /** @param {Question} question @param {Error} error */
  fail(question, error) {
    this.title.textContent = format.words(question.figure);
    this.content.replaceChildren(h("p", { class: "error" }, format.told(error.message)));
  }

  /** @param {any} why */
  show(why) {
    this.title.textContent = why.title;
    this.content.scrollTop = 0;
    this.content.replaceChildren(
      h("div", { class: "why-value", id: "why-value" }, why.text ?? String(why.value)),
      ...formulas(why), ...terms(why), ...words(why), ...others(why), ...error(why.error),
      ...sources(why.sources),
    );
  }
}

/** @param {HTMLElement} button */
function told(button) {
  /** @type {Record<string, any>} */
  const found = {};
  for (const [key, name] of [["whyAsk", "ask"], ["whyCollective", "collective"]]) {
    const text = button.dataset[key];
    if (!text) continue;
    try {
      found[name] = JSON.parse(text);
    } catch {
      // Not ours: the page's own question then stands.
    }
  }
  return found;
}

/** @param {any} why */
function formulas(why) {
  const sum = why.terms?.length > 1 && why.terms.every((/** @type {any} */ each) => each.share !== null);
  if (sum) return [h("p", { class: "formula", id: "why-formula" }, "the sum of what follows")];
  return [
    why.formula && h("h3", {}, "Formula"),
    why.formula && h("p", { class: "formula", id: "why-formula" }, why.formula),
    why.numbers && why.numbers !== why.formula &&
      h("p", { class: "formula", id: "why-numbers" }, `= ${why.numbers}`),
  ].filter(Boolean);
}

/** The terms of the formula in one table: value, share of a sum, and the way to their own explanation. @param {any} why */
function terms(why) {
  const rows = /** @type {any[]} */ (why.terms ?? []);
  if (!rows.length) return [];
  const shares = rows.some((term) => term.share !== null);
  const ordered = shares ? [...rows].sort((a, b) => b.value - a.value) : rows;
  return [
    h("table", { class: "terms", id: "why-terms" },
      h("thead", { class: "unseen" }, h("tr", {},
        h("th", {}, "what"), h("th", {}, "value"), shares && h("th", {}, "share"))),
      h("tbody", {}, ordered.map((term) => h("tr", {},
        h("th", { scope: "row" }, term.symbol,
          term.meaning && h("span", { class: "term-meaning" }, term.meaning),
          term.source && h("span", { class: "term-source" }, term.source)),
        h("td", { class: "term-value" }, valueOf(term)),
        shares && h("td", { class: "term-share" }, term.share === null ? "" : format.percent(term.share)))))),
  ];
}

/** @param {any} term */
function valueOf(term) {
  const text = term.text ?? plain(term.value);
  return term.figure ? number(text, term.figure, { label: term.symbol }) : text;
}

/** @param {any} value */
function plain(value) {
  if (typeof value !== "number") return String(value);
  return Number.isInteger(value) && Math.abs(value) < 1e9
    ? format.whole(value) : format.significant(value, 4);
}

/** Figures behind it that are no terms of its formula. @param {any} why */
function others(why) {
  const named = new Set((why.terms ?? []).map((/** @type {any} */ each) => each.figure));
  const rows = (why.parts ?? []).filter((/** @type {any} */ each) => !named.has(each.figure));
  if (!rows.length) return [];
  return [
    h("h3", {}, "See also"),
    h("ul", { class: "why-parts", id: "why-parts" }, rows.map((/** @type {any} */ part) => h("li", {},
      h("span", {}, part.name), number(part.text ?? plain(part.value), part.figure, { label: part.name })))),
  ];
}

/** @param {any} why */
function words(why) {
  return why.words ? [h("p", { id: "why-words", class: "why-words" }, format.sentence(why.words))] : [];
}

/** @param {any} error */
function error(error) {
  if (!error) return [];
  const said = error.words ?? `${error.confidence_pct} % of ${error.like}`;
  return [h("h3", {}, "How sure"), h("p", { id: "why-error" }, format.sentence(said))];
}

/** @param {any[]|undefined} lines */
function sources(lines) {
  if (!lines?.length) return [];
  const said = lines.map((each) => h("li", {}, typeof each === "string" ? each : JSON.stringify(each)));
  return [h("h3", {}, "Sources"), h("ul", { class: "sources" }, said)];
}
