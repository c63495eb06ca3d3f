// @ts-check
// The tabs. A panel's module is fetched when its tab is first opened, and only the panel in sight
// is kept up to date; a panel that cannot be loaded or drawn says so in its own place.

import { isAbort } from "./api.js";
import { byId, h } from "./dom.js";
import { saveMenu } from "./export.js";
import { told } from "./format.js";
import { TABS } from "./state.js";

/** @type {Record<string, string>} */
const TITLES = {
  timeline: "Timeline", scaling: "Scaling", collective: "Collective", ring: "Algorithms",
  roofline: "Roofline", memory: "Memory", load: "Load", plan: "Plan",
};

/** @param {string} id */
const moduleOf = (id) => (id === "plan" ? import("./plan.js") : import(`./panels/${id}.js`));

/**
 * @typedef {{update: (ask: any, estimate: any, signal: AbortSignal) => Promise<any>,
 *   rows: () => any[][], leave?: () => void}} Panel
 */

/** The row of tabs and the panel below it. */
export class Tabs {
  /** @param {any} page what a panel is given @param {(tab: string) => void} chosen */
  constructor(page, chosen) {
    this.page = page;
    this.chosen = chosen;
    this.active = TABS[0];
    /** @type {Record<string, Promise<Panel>>} */
    this.panels = {};
    /** @type {Record<string, Record<string, any>>} */
    this.places = {};
    /** @type {[any, any]|null} */
    this.last = null;
    this.refused = false;
    /** @type {AbortController|null} */
    this.control = null;
    this.build();
  }

  build() {
    const list = byId("tabs");
    for (const id of TABS) {
      list.append(h("button", {
        type: "button", role: "tab", id: `tab-${id}`, "aria-controls": `panel-${id}`,
        on: { click: () => this.choose(id) },
      }, TITLES[id]));
      byId("tab-panels").append(this.place(id));
    }
    list.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => this.key(event));
  }

  /** @param {string} id */
  place(id) {
    const root = h("div", { class: "panel-root", id: `root-${id}` });
    const error = h("p", { class: "error", hidden: true, role: "alert" });
    const menu = saveMenu(id, root, TITLES[id], async () => (await this.panels[id]).rows());
    const section = h(
      "section",
      { role: "tabpanel", id: `panel-${id}`, class: "panel", "aria-labelledby": `tab-${id}`, hidden: true },
      h("div", { class: "panel-head" }, h("h2", {}, TITLES[id]), menu),
      error, root,
    );
    this.places[id] = { root, error, section };
    return section;
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const at = TABS.indexOf(this.active);
    const to = /** @type {Record<string, number>} */ ({
      ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: TABS.length - 1,
    })[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const id = TABS[(to + TABS.length) % TABS.length];
    this.choose(id);
    byId(`tab-${id}`).focus();
  }

  /** @param {string} id */
  choose(id) {
    const other = id !== this.active;
    this.show(id);
    if (other) this.chosen(id);
  }

  /** Show a tab. @param {string} id */
  show(id) {
    this.active = id;
    for (const each of TABS) {
      const tab = byId(`tab-${each}`);
      tab.setAttribute("aria-selected", String(each === id));
      tab.tabIndex = each === id ? 0 : -1;
      this.places[each].section.hidden = each !== id;
    }
    // In sight, where the row of tabs is wider than the screen; the page itself does not move.
    const [row, tab] = [byId("tabs"), byId(`tab-${id}`)];
    row.scrollLeft = tab.offsetLeft - row.offsetLeft - (row.clientWidth - tab.clientWidth) / 2;
    if (this.last) this.update(...this.last);
    else if (this.refused) this.refuse();
  }

  /** Say that there is nothing to draw: the question above has no answer. */
  refuse() {
    this.control?.abort();
    this.last = null;
    this.refused = true;
    const { root, error } = this.places[this.active];
    [root.dataset.stale, root.dataset.failed] = ["1", "1"];
    error.textContent = "There is nothing to draw while the question above has no answer.";
    error.hidden = false;
  }

  /** Bring the panel in sight up to date. @param {any} ask @param {any} estimate */
  async update(ask, estimate) {
    this.last = [ask, estimate];
    this.refused = false;
    this.control?.abort();
    const control = new AbortController();
    this.control = control;
    const id = this.active;
    const { root, error } = this.places[id];
    root.dataset.stale = "1";
    try {
      const panel = await this.panel(id);
      if (control.signal.aborted) return;
      await panel.update(ask, estimate, control.signal);
      if (control.signal.aborted) return;
      error.hidden = true;
      root.dataset.drawn = "1";
    } catch (failure) {
      if (isAbort(failure) || control.signal.aborted) return;
      const line = /** @type {Error} */ (failure).message || "this picture cannot be drawn";
      error.textContent = told(line);
      error.hidden = false;
      root.dataset.failed = "1";
      return;
    }
    delete root.dataset.stale;
    delete root.dataset.failed;
  }

  /** @param {string} id @returns {Promise<Panel>} */
  panel(id) {
    if (!this.panels[id]) {
      const loaded = moduleOf(id).catch((error) => {
        delete this.panels[id];
        console.warn(error);
        throw new Error(`the ${TITLES[id]} picture cannot be loaded: reload the page`);
      });
      this.panels[id] = loaded.then((module) => module.mount(this.places[id].root, this.page));
      this.panels[id].catch(() => delete this.panels[id]);
    }
    return this.panels[id];
  }
}
