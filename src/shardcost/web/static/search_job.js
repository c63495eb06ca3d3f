// @ts-check
// A search on the server: begun, asked how far it is, cancelled; leaving the page ends it.

import { get, isAbort, post, remove } from "./api.js";
import { announce, h } from "./dom.js";
import * as format from "./format.js";

const POLL_MS = [60, 100, 150];
const WAITING = ["waiting", "running"];

/** The buttons, the bar and the line of a search. */
export class SearchJob {
  /**
   * @param {string} id before the names of its elements
   * @param {string} path where it is begun
   * @param {string} noun what it looks at
   * @param {{question: () => any, begun: (on: boolean) => void, done: (result: any) => void,
   *   failed: (line: string, end: any) => void}} owner
   */
  constructor(id, path, noun, owner) {
    [this.path, this.noun, this.owner] = [path, noun, owner];
    /** @type {string|null} */
    this.job = null;
    this.turn = 0;
    this.start = h("button", { type: "button", class: "primary", id: `${id}-start` }, "Search");
    this.cancel = h("button", { type: "button", id: `${id}-cancel`, disabled: true }, "Cancel");
    this.progress = h("progress", { id: `${id}-progress`, max: "1", value: "0", "aria-label": `${noun} looked at` });
    this.status = h("span", { id: `${id}-status`, role: "status" });
    this.bar = h("div", { class: "plan-actions" }, this.start, this.cancel, this.progress, this.status);
    this.start.addEventListener("click", () => this.search());
    this.cancel.addEventListener("click", () => this.stop());
    window.addEventListener("pagehide", () => {
      if (this.job) remove(`api/plan/${this.job}`, true).catch(() => {});
    });
  }

  async search() {
    const question = this.owner.question();
    if (!question) return;
    const turn = ++this.turn;
    if (this.job) await remove(`api/plan/${this.job}`).catch(() => {});
    this.running(true);
    this.say("Starting…");
    try {
      const { job } = await post(this.path, question);
      this.job = job;
      const end = await this.follow(job, turn);
      if (turn === this.turn) this.ended(end);
    } catch (error) {
      if (turn !== this.turn || isAbort(error)) return;
      this.fail(/** @type {any} */ (error).message, /** @type {any} */ (error).body);
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
    this.say(now.state === "waiting" ? "Waiting for another search to end…"
      : `${format.whole(done)} of ${format.whole(cells)} ${this.noun}, ${format.whole(seconds > 0 ? done / seconds : 0)} a second`);
  }

  /** @param {any} end */
  ended(end) {
    this.running(false);
    if (end.state === "done" && end.result) {
      this.progress.value = 1;
      this.owner.done(end.result);
    } else if (end.state === "cancelled") this.say("Cancelled.");
    else this.fail(end.detail ?? "the search failed", end);
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
    this.owner.begun(on);
  }

  /** @param {string} line */
  say(line) {
    this.status.textContent = line;
  }

  /** @param {string} line @param {any} end */
  fail(line, end) {
    this.running(false);
    this.say("");
    this.owner.failed(line, end);
  }
}
