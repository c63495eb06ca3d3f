// @ts-check
// A question that is kept beside the one that moves: its answer stays in the headline, with what the
// other differs by.

import { isAbort, post } from "./api.js";
import { announce, byId, h } from "./dom.js";
import * as format from "./format.js";
import { comparison, difference, judged, pieces, timeOf } from "./compare.js";
import { body } from "./state.js";

/** @typedef {import("./state.js").Ask} Ask */

/** The pinned question. */
export class Pin {
  /**
   * @param {{ask: () => Ask, estimate: () => any, load: (ask: Ask) => void, changed: () => void}} page
   */
  constructor(page) {
    this.page = page;
    /** @type {Ask|null} */
    this.ask = null;
    /** @type {any} */
    this.found = null;
    byId("pin").addEventListener("click", () => (this.ask ? this.drop() : this.keep()));
  }

  /** Pin what the page shows. */
  keep() {
    const now = this.page.estimate();
    if (!now) return;
    [this.ask, this.found] = [this.page.ask(), now];
    announce("this question is pinned: change it, and both are compared");
    this.show(now);
    this.page.changed();
  }

  drop() {
    [this.ask, this.found] = [null, null];
    announce("unpinned");
    this.show(this.page.estimate());
    this.page.changed();
  }

  /** The pinned question moves, the other is pinned. */
  swap() {
    const [ask, now, found] = [this.ask, this.page.ask(), this.page.estimate()];
    if (!ask) return;
    [this.ask, this.found] = [now, found];
    this.page.load(ask);
  }

  /** Pin what a link has pinned. @param {Ask|null} ask */
  async restore(ask) {
    if (ask && this.ask && JSON.stringify(body(ask)) === JSON.stringify(body(this.ask))) return;
    [this.ask, this.found] = [ask, null];
    this.show(this.page.estimate());
    if (!ask) return;
    try {
      const found = await post("api/estimate", body(ask));
      if (this.ask !== ask) return;
      this.found = found;
    } catch (error) {
      if (isAbort(error) || this.ask !== ask) return;
      this.ask = null;
      announce(`the pinned question has no answer: ${/** @type {Error} */ (error).message}`);
    }
    this.show(this.page.estimate());
  }

  /** Show both. @param {any} now the answer to the question that moves */
  show(now) {
    const [button, line, box] = ["pin", "headline-pinned", "pinned"].map(byId);
    button.textContent = this.ask ? "Unpin" : "Pin to compare";
    button.setAttribute("aria-pressed", String(Boolean(this.ask)));
    const both = Boolean(this.found && now);
    [line.hidden, box.hidden] = [!both, !both];
    if (!both) return;
    const [from, to] = [timeOf(this.found), timeOf(now)];
    line.replaceChildren("pinned ", h("b", {}, format.time(from)), ", now ",
      h("b", { class: judged(from, to, false) || null }, pieces(difference(from, to, format.time))));
    const open = box.querySelector("details")?.open ?? true;
    box.replaceChildren(h("details", { open },
      h("summary", {}, `Compared with ${this.found.title}, ${[this.found.details].flat().join(", ")}`),
      comparison([
        { name: "pinned", short: "pinned", found: this.found }, { name: "now", short: "now", found: now }]),
      h("p", { class: "pin-actions" },
        h("button", { type: "button", class: "small", id: "pin-swap", on: { click: () => this.swap() } },
          "Move the pinned one instead"))));
  }
}
