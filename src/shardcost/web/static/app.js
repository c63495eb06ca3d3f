// @ts-check
// The start of the page: one question, what shows it, and the way from a change to an answer.
//
// Names that tests and scripts may rely on:
//   html[data-ready="1"]   the first answer (or its error) is shown; html[data-busy] a request is under way
//   #model #on #network #software              lists; #paste-config #paste-profile #open-file  open #file-dialog
//   #file-text #file-input #file-choose #file-read #file-use   in #file-dialog; #drop-message what the file means
//   #phase-train #phase-prefill #phase-decode  radios
//   #field-<name>                              sizes and choices: batch, context_tokens, recompute, …;
//                                              [data-half=<name>] [data-double=<name>] beside sizes
//   [data-axis=<axis>]                         sliders (role=slider; data-value, aria-valuetext);
//                                              .step[data-value][data-state=fits|tight|never] their ticks
//   #headline[data-state=shown|error]  #headline-title #headline-details #headline-time
//   #headline-interval [data-tile=<figure>] #time-bar #time-legend #memory-bar #memory-legend
//   #memory-total #limit #change #try-change #cautions #headline-error #undo #remarks
//   #pin #pin-swap #headline-pinned #pinned     the question that is kept beside this one
//   #headline-limits                           how surely the limits of a search hold
//   #share-url #theme #reset #controls-toggle
//   #export-menu [data-export=json|csv|html|trace|commands|launch]   #text-dialog
//   #tab-<id> #panel-<id> #save-<id> [data-save=svg|png|csv]
//   #root-<id>[data-drawn] once drawn; [data-stale] while it is drawn anew; [data-failed] if it cannot be
//   #why #why-title #why-value #why-formula #why-numbers #why-parts #why-error #why-back #why-close
//   #plan-start #plan-cancel #plan-progress #plan-status #plan-table #plan-reasons #plan-front
//   #plan-for-layouts #plan-for-load #plan-load-<option> #plan-load-start #plan-load-status #plan-load-table
//   #load-<option> #load-trace #load-trace-choose #load-trace-drop #load-pools #load-more #load-words #load-commands
//   #plan-filter #plan-only-<degree> [data-sort=<column>] [data-compare=<rank>] #plan-compare #plan-largest-load
//   #plan-objective #plan-gpus #plan-max_tpot … #plan-fix-<axis>
//   .number[data-why=<figure>]                 every figure that can be asked

import { get, isAbort, post } from "./api.js";
import { Controls } from "./controls.js";
import { announce, byId } from "./dom.js";
import { copied, exportMenu, showTexts } from "./export.js";
import { Files } from "./files.js";
import * as format from "./format.js";
import * as headline from "./headline.js";
import { Pin } from "./pin.js";
import { body, fromUrl, initial, patched, same, toUrl } from "./state.js";
import { Tabs } from "./tabs.js";
import { Why } from "./why.js";

/** @typedef {import("./state.js").Ask} Ask */

const DEBOUNCE_MS = 25;

/** The page: holds the question and asks it. */
class Page {
  constructor() {
    /** @type {Ask} */
    this.ask = initial();
    /** @type {any} */
    this.estimate = null;
    /** @type {any} */
    this.advice = null;
    /** @type {Ask|null} */
    this.lastGood = null;
    /** @type {AbortController|null} */
    this.control = null;
    /** @type {Record<string, string>} */
    this.plan = {};
    /** @type {Record<string, string>} */
    this.view = {};
    /** @type {Record<string, number>} */
    this.batches = {};
    this.timer = 0;
    this.urls = 0;
    this.given = {
      post, format, announce, catalog: /** @type {any} */ (null),
      why: (/** @type {string} */ figure, /** @type {any} */ about = {}) =>
        this.why.open({ figure, ...about }),
      set: (/** @type {Ask} */ patch, /** @type {any} */ how) => this.set(patch, how),
      ask: () => body(this.ask),
      plan: () => this.plan,
      setPlan: (/** @type {Record<string, string>} */ plan) => {
        this.plan = plan;
        this.writeUrl(false);
      },
      /** Told of every answer, in whatever tab. @type {Set<(found: any) => void>} */
      followers: new Set(),
      trace: () => this.ask.trace,
      view: (/** @type {string} */ name) => this.view[name],
      /** Keep what a tab shows in the address; "" is what it begins with. */
      setView: (/** @type {Record<string, string>} */ view) => {
        this.view = { ...this.view, ...view };
        this.writeUrl(false);
      },
    };
    this.controls = new Controls({ set: (patch, how) => this.set(patch, how), ask: () => this.ask });
    this.why = new Why(() => this.ask);
    this.files = new Files((patch) => this.useFile(patch));
    this.tabs = new Tabs(this.given, () => this.writeUrl(false));
    this.pin = new Pin({
      ask: () => this.ask, estimate: () => this.estimate, load: (ask) => this.load(ask),
      changed: () => this.writeUrl(false),
    });
    this.listen();
  }

  async start() {
    const catalog = this.loadCatalog();
    await this.readUrl();
    await Promise.allSettled([catalog, this.refresh()]);
  }

  listen() {
    exportMenu(() => body(this.ask), () => this.estimate, (line) => remark([line]));
    byId("share-url").addEventListener("click", () => this.share());
    byId("reset").addEventListener("click", () => this.load(initial()));
    byId("try-change").addEventListener("click", () => {
      const set = this.advice?.change?.set;
      if (set) this.set(set, { push: true });
      byId("headline").focus({ preventScroll: true });
    });
    window.addEventListener("popstate", async () => {
      await this.readUrl();
      this.refresh();
    });
    byId("remarks-close").addEventListener("click", () => remark([]));
    themeButton();
  }

  async loadCatalog() {
    try {
      const catalog = await get("api/catalog");
      this.given.catalog = catalog;
      this.controls.fill(catalog);
      byId("version").textContent = catalog.version ? `shardcost ${catalog.version}` : "";
    } catch (error) {
      remark([`the catalog cannot be read: ${/** @type {Error} */ (error).message}`]);
    }
  }

  // --------------------------------------------------------------------------- the question

  /**
   * Change some fields of the question. `push` leaves a step in the browser's history.
   * @param {Ask} patch
   * @param {{push?: boolean}} [how]
   */
  set(patch, how = {}) {
    const next = patched(this.ask, this.withBatch(patch));
    if (same(next, this.ask)) return;
    this.ask = next;
    this.controls.show(this.ask, this.estimate);
    this.soon(Boolean(how.push));
  }

  /** Each phase remembers the batch it had. @param {Ask} patch */
  withBatch(patch) {
    const { phase, batch } = this.ask;
    if (!patch.phase || patch.phase === phase || patch.batch) return patch;
    this.batches[phase] = batch;
    return this.batches[patch.phase] ? { ...patch, batch: this.batches[patch.phase] } : patch;
  }

  /** Ask something else altogether. @param {Ask} ask */
  load(ask) {
    this.ask = ask;
    this.controls.show(this.ask, this.estimate);
    this.soon(true);
  }

  /** @param {Ask} patch what a file is used for */
  useFile(patch) {
    this.set({ ...patch, ...(patch.config ? { model: null } : {}), ...(patch.profile ? { on: null } : {}) },
      { push: true });
  }

  /** @param {boolean} push */
  soon(push) {
    window.clearTimeout(this.timer);
    // Said at once: a question is under way, though not sent yet.
    byId("headline-body").dataset.stale = "1";
    document.documentElement.dataset.waiting = "1";
    this.control?.abort();
    this.writeUrl(push);
    this.timer = window.setTimeout(() => this.refresh(), DEBOUNCE_MS);
  }

  // --------------------------------------------------------------------------------- the URL

  async readUrl() {
    const { ask, tab, plan, view, pin, remarks } = await fromUrl(window.location);
    [this.ask, this.plan, this.view] = [ask, plan, view];
    this.pin.restore(pin);
    this.controls.show(ask, this.estimate);
    this.tabs.show(tab);
    remark(remarks);
  }

  /** @param {boolean} push */
  async writeUrl(push) {
    const turn = ++this.urls;
    const { url, left } = await toUrl(this.ask, this.tabs.active, this.plan, this.view, this.pin.ask);
    if (turn !== this.urls && !push) return;
    try {
      if (push) window.history.pushState(null, "", url);
      else window.history.replaceState(null, "", url);
    } catch {
      // Browsers limit how often the address may change; the next change catches up.
    }
    if (left.length) remark([`the ${left.join(" and the ")} is too large for a link, which leaves it out`]);
  }

  async share() {
    await this.writeUrl(false);
    const { href } = window.location;
    const button = byId("share-url").querySelector("span");
    if (!(await copied(href))) {
      showTexts("A link to exactly this page", [["Link", href]]);
      return;
    }
    button.textContent = "Copied";
    window.setTimeout(() => { button.textContent = "Copy link"; }, 1600);
  }

  // ------------------------------------------------------------------------------ the answer

  async refresh() {
    this.control?.abort();
    const control = new AbortController();
    this.control = control;
    const asked = this.ask;
    try {
      this.estimate = await post("api/estimate", body(asked), control.signal);
      this.lastGood = asked;
      headline.show(this.estimate);
      this.pin.show(this.estimate);
      for (const follow of this.given.followers) follow(this.estimate);
      if (document.documentElement.dataset.ready) announce(headline.inWords(this.estimate));
      this.controls.show(asked, this.estimate);
      document.title = `${this.estimate.title ?? "Estimate"} · shardcost`;
      this.settled();
      await Promise.allSettled([
        this.advise(asked, control), this.tabs.update(body(asked), this.estimate),
      ]);
      this.why.refresh();
    } catch (error) {
      if (isAbort(error)) return;
      this.fail(/** @type {Error} */ (error));
      await this.advise(asked, control, true);
    }
  }

  settled() {
    const root = document.documentElement;
    delete byId("headline-body").dataset.stale;
    delete root.dataset.waiting;
    root.dataset.ready = "1";
  }

  /** @param {Error} error */
  fail(error) {
    const good = this.lastGood;
    const back = good ?? initial();
    headline.showError(error.message, same(back, this.ask) ? null : {
      name: good ? "Back to the last that worked" : "Start again", go: () => this.load(back),
    });
    this.settled();
    byId("headline-body").dataset.stale = "error";
    this.tabs.refuse();
  }

  /** @param {Ask} asked @param {AbortController} control @param {boolean} [quiet] the reason is told */
  async advise(asked, control, quiet = false) {
    try {
      this.advice = await post("api/advice", body(asked), control.signal);
      headline.showAdvice(this.advice, this.estimate);
      this.controls.showSteps(this.advice.steps);
    } catch (error) {
      if (isAbort(error)) return;
      this.advice = null;
      headline.showNoAdvice(quiet ? "–" : /** @type {Error} */ (error).message);
    }
  }
}

/** Show lines that concern the whole page. @param {string[]} lines */
function remark(lines) {
  const box = byId("remarks");
  box.hidden = !lines.length;
  box.querySelector("p").textContent =
    lines.length ? `${format.told(lines.join("; "))}.` : "";
}

const THEMES = ["system", "light", "dark"];

/** The button goes round: the system's theme, light, dark. */
function themeButton() {
  const [button, root] = [byId("theme"), document.documentElement];
  const show = () => {
    const text = `Theme: ${root.dataset.theme ?? "system"}`;
    button.title = text;
    button.setAttribute("aria-label", text);
  };
  button.addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(root.dataset.theme ?? "system") + 1) % THEMES.length];
    if (next === "system") delete root.dataset.theme;
    else root.dataset.theme = next;
    try {
      window.localStorage.setItem("shardcost-theme", next);
    } catch {
      // Not kept, then: the choice stands until the page is left.
    }
    show();
  });
  show();
}

new Page().start();
