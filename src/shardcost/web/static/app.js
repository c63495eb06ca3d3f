// @ts-check
// The start of the page: one question, what shows it, and the way from a change to an answer.
//
// Names that tests and scripts may rely on:
//   html[data-ready="1"]   the first answer (or its error) is shown; html[data-busy] a request is under way
//   #model #on #network #software              lists; #paste-config #paste-profile #open-file  open #file-dialog
//   #file-text #file-input #file-choose #file-read #file-use   in #file-dialog; #drop-message what the file means;
//   #file-on #file-network #file-gpus                         what measurements were made on
//   #phase-train #phase-prefill #phase-decode  radios
//   #field-<name>                              sizes and choices: batch, context_tokens, recompute, …;
//                                              [data-half=<name>] [data-double=<name>] beside sizes
//   [data-axis=<axis>]                         sliders (role=slider; data-value, aria-valuetext); #number-<axis> beside;
//                                              .step[data-value][data-state=fits|tight|never] their ticks
//   #headline[data-state=shown|error]  #headline-title #headline-details #headline-time
//   #headline-interval [data-tile=<figure>] #time-bar #time-legend #memory-bar #memory-legend
//   #memory-total #limit #change #try-change #cautions #headline-error #undo #take-nearest #remarks
//   #adjusted what the page changed so that there is an answer, with #adjusted-undo
//   #pin #pin-swap #headline-pinned #pinned     the question that is kept beside this one
//   #headline-limits                           how surely the limits of a search hold
//   #share-url #theme #reset #controls-toggle #remarks-go what a remark offers
//   #export-menu [data-export=json|csv|html|trace|commands|launch]   #text-dialog
//   #tab-<id> #panel-<id> #save-<id> [data-save=svg|png|csv]
//   #root-<id>[data-drawn] once drawn; [data-stale] while it is drawn anew; [data-failed] if it cannot be
//   #why #why-title #why-value #why-formula #why-numbers #why-terms #why-words #why-parts #why-error #why-back #why-close
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

const PAUSE_MS = 40; // without a change before advice and panel are asked for: a held key repeats every 33
const OVERTAKEN_MS = 100; // that an estimate may still take once its question has changed

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
    /** Fields that stay where the layout has to be adjusted; null: it is not. @type {string[]|null} */
    this.kept = null;
    /** Must it fit, too? */
    this.mustFit = false;
    /** @type {headline.Adjustment|null} */
    this.adjusted = null;
    /** @type {AbortController|null} */
    this.control = null;
    /** @type {Record<string, string>} */
    this.plan = {};
    /** @type {Record<string, string>} */
    this.view = {};
    /** @type {Record<string, number>} */
    this.batches = {};
    /** What is wrong with the link. @type {string[]} */
    this.remarks = [];
    /** The request for an estimate that is under way. @type {AbortController|null} */
    this.asking = null;
    this.changed = -Infinity;
    /** Is the address still that of an earlier question? */
    this.unwritten = false;
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
    this.controls = new Controls({
      set: (patch, how) => this.set(patch, how), ask: () => this.ask, settle: (kept) => this.settle(kept),
    });
    this.why = new Why(() => this.ask);
    this.files = new Files((patch) => this.useFile(patch), () => ({
      on: this.ask.on, network: this.ask.network, catalog: this.given.catalog,
    }));
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
    await Promise.allSettled([catalog.then(() => this.checkViews()), this.refresh()]);
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
   * Change some fields of the question.
   * @param {Ask} patch
   * @param {import("./controls.js").How} [how]
   */
  set(patch, how = {}) {
    const next = patched(how.from ?? this.ask, this.withBatch(patch));
    if (same(next, this.ask)) return;
    this.kept = how.kept?.length ? how.kept : null;
    this.mustFit = Boolean(patch.phase && patch.phase !== this.ask.phase);
    this.adjusted = how.said ? { words: how.said, why: null, undo: this.backTo(how.from ?? this.ask) } : null;
    this.ask = next;
    this.renew(Boolean(how.push));
  }

  /** Each phase remembers the batch it had. @param {Ask} patch */
  withBatch(patch) {
    const { phase, batch } = this.ask;
    if (!patch.phase || patch.phase === phase || patch.batch) return patch;
    this.batches[phase] = batch;
    return this.batches[patch.phase] ? { ...patch, batch: this.batches[patch.phase] } : patch;
  }

  /** A number was typed to its end: adjust the layout, if there is none with it. @param {string[]} kept */
  settle(kept) {
    this.kept = kept;
    if (this.impossible) this.refresh();
  }

  /** @param {Ask} ask */
  backTo(ask) {
    return () => this.load(ask);
  }

  /** Ask something else altogether. @param {Ask} ask */
  load(ask) {
    [this.kept, this.mustFit, this.adjusted] = [null, false, null];
    this.ask = ask;
    this.renew(true);
  }

  /** @param {Ask} patch what a file is used for */
  useFile(patch) {
    this.set({ ...patch, ...(patch.config ? { model: null } : {}), ...(patch.profile ? { on: null } : {}) },
      { push: true });
  }

  /**
   * Ask the changed question: at once, or when the estimate that is under way is here, so that a
   * dragged slider never has more than one. What follows an estimate waits for a pause.
   * @param {boolean} push
   */
  renew(push) {
    byId("headline-body").dataset.stale = "1";
    document.documentElement.dataset.waiting = "1";
    this.changed = performance.now();
    if (this.asking) this.timer ||= window.setTimeout(() => this.refresh(), OVERTAKEN_MS);
    else this.refresh();
    this.controls.show(this.ask, this.estimate); // while the server computes
    this.unwritten = !push;
    if (push) this.writeUrl(true);
  }

  // --------------------------------------------------------------------------------- the URL

  async readUrl() {
    const { ask, tab, plan, view, pin, remarks } = await fromUrl(window.location);
    [this.ask, this.plan, this.view] = [ask, plan, view];
    [this.kept, this.mustFit, this.adjusted] = [null, false, null];
    this.unwritten = false;
    this.pin.restore(pin);
    this.controls.show(ask, this.estimate);
    this.tabs.show(tab);
    this.remarks = remarks;
    if (this.given.catalog) this.checkViews();
    remark(this.remarks);
  }

  /** Say which views of the link there are none of, now that the catalog is known. */
  checkViews() {
    const { catalog } = this.given;
    if (!catalog) return;
    const named = (/** @type {any[]} */ rows) => rows.map(({ name }) => name);
    /** @type {Record<string, string[]>} */
    const known = {
      timeline_of: ["layer", "step"], collective_name: catalog.collectives, collective_mode: ["graph", "eager"],
      ring_algorithm: named(catalog.algorithms),
      ring_collective: catalog.algorithms.flatMap((/** @type {any} */ each) => each.collectives),
    };
    for (const [name, names] of Object.entries(known)) {
      const value = this.view[name];
      if (!value || names.includes(value)) continue;
      delete this.view[name];
      this.remarks.push(`${name} in the link cannot be "${value}", and was left out`);
      remark(this.remarks);
    }
  }

  /** @param {boolean} push */
  async writeUrl(push) {
    const turn = ++this.urls;
    this.unwritten = false;
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
    const here = ["127.0.0.1", "localhost", "[::1]"].includes(window.location.hostname);
    const where = here ? "on this machine, while the page is served" : "wherever this server can be reached";
    remark([`the link works ${where}; elsewhere the command asks the same`], {
      name: "Copy command", go: () => this.copyCommand(),
    });
  }

  async copyCommand() {
    try {
      const { command } = await post("api/commands", body(this.ask));
      if (await copied(command)) remark(["the command is copied"]);
      else showTexts("The same from a terminal", [["Command line", command]]);
    } catch (error) {
      remark([/** @type {Error} */ (error).message]);
    }
  }

  // ------------------------------------------------------------------------------ the answer

  async refresh() {
    window.clearTimeout(this.timer);
    this.timer = 0;
    this.control?.abort();
    const control = new AbortController();
    this.control = control;
    const asked = this.ask;
    this.impossible = false;
    try {
      const found = await this.estimated(asked, control);
      if (asked !== this.ask) return void this.refresh();
      if (this.mustFit && !found.memory.fits && await this.adjust(control)) return;
      this.estimate = found;
      this.lastGood = asked;
      headline.show(this.estimate);
      headline.showAdjusted(this.adjusted);
      this.pin.show(this.estimate);
      this.settled();
      for (const follow of this.given.followers) follow(this.estimate);
      if (document.documentElement.dataset.ready) announce(headline.inWords(this.estimate));
      this.controls.show(asked, this.estimate);
      document.title = `${this.estimate.title ?? "Estimate"} · shardcost`;
      const pause = this.changed + PAUSE_MS - performance.now();
      if (pause > 0) await new Promise((done) => { window.setTimeout(done, pause); });
      if (control.signal.aborted) return;
      const details = [this.advise(asked, control), this.tabs.update(body(asked), this.estimate)];
      this.paused();
      await Promise.allSettled(details);
      this.why.refresh();
    } catch (error) {
      if (isAbort(error)) return;
      if (asked !== this.ask) return void this.refresh();
      this.impossible = /** @type {any} */ (error).impossible === true;
      if (this.impossible && this.kept && await this.adjust(control)) return;
      if (control.signal.aborted) return;
      this.fail(/** @type {Error} */ (error));
      await this.advise(asked, control, true);
    }
  }

  /** Return the estimate. @param {Ask} asked @param {AbortController} control */
  async estimated(asked, control) {
    this.asking = control;
    try {
      return await post("api/estimate", body(asked), control.signal);
    } finally {
      if (this.asking === control) this.asking = null;
    }
  }

  /**
   * Ask the nearest question that has an answer, as the server finds it; what was changed last stays.
   * @param {AbortController} control
   * @returns {Promise<boolean>} whether there is one
   */
  async adjust(control) {
    const [kept, fits, before] = [this.kept, this.mustFit, this.lastGood];
    [this.kept, this.mustFit] = [null, false];
    try {
      const asked = { ...body(this.ask), kept: kept ?? ["phase"], fits };
      const found = await post("api/nearest", asked, control.signal);
      if (!Object.keys(found.set).length) return false;
      this.ask = patched(this.ask, found.set);
      this.adjusted = { words: found.words, why: found.why, undo: before && this.backTo(before) };
      this.controls.show(this.ask, this.estimate);
      this.writeUrl(false);
      await this.refresh();
      return true;
    } catch (error) {
      return isAbort(error);
    }
  }

  settled() {
    const root = document.documentElement;
    delete byId("headline-body").dataset.stale;
    root.dataset.ready = "1";
  }

  /** There was no change for a while: write the address, which browsers limit. */
  paused() {
    delete document.documentElement.dataset.waiting;
    if (this.unwritten) this.writeUrl(false);
  }

  /** @param {Error} error */
  fail(error) {
    const good = this.lastGood;
    const back = good ?? initial();
    const ways = [];
    if (!same(back, this.ask)) {
      const name = good ? "Back to the last that worked" : "Start again";
      ways.push({ id: "undo", name, go: () => this.load(back) });
    }
    if (this.impossible) ways.push({ id: "take-nearest", name: "Nearest that runs", go: () => this.nearest() });
    headline.showAdjusted(null);
    headline.showError(error.message, ways);
    this.settled();
    this.paused();
    byId("headline-body").dataset.stale = "error";
    this.tabs.refuse();
  }

  /** Take the nearest question that has an answer, if there is one. */
  async nearest() {
    this.control?.abort();
    const control = new AbortController();
    this.control = control;
    if (!(await this.adjust(control))) remark(["no layout near this one runs; Plan searches all of them"]);
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

/**
 * Show lines that concern the whole page.
 * @param {string[]} lines @param {{name: string, go: () => void}} [way] what can be done
 */
function remark(lines, way) {
  const [box, button] = [byId("remarks"), byId("remarks-go")];
  box.hidden = !lines.length;
  box.querySelector("p").textContent =
    lines.length ? `${format.told(lines.join("; "))}.` : "";
  button.hidden = !way;
  button.textContent = way?.name ?? "";
  button.onclick = way?.go ?? null;
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
