// @ts-check
// A slider over the steps that an axis can take. Not every value is possible, so it steps over
// those that are not, says why when one is asked for, and tells apart what is impossible from what
// merely does not fit memory.

import { announce, byId, h } from "./dom.js";

/**
 * @typedef {{value: any, possible: boolean, fits: boolean, reason: string|null,
 *   time_s: number|null, tokens_per_s_per_gpu?: number|null, current: boolean,
 *   set?: Record<string, any>}} Step
 */

const LABELS = 9; // more do not stand beside one another in the column

/** One axis as a row: name, value, rail with a tick for each step. */
export class Slider {
  /**
   * @param {{axis: string, name: string, hint: string, text: (step: Step) => string,
   *   choose: (step: Step) => void}} given
   */
  constructor(given) {
    this.given = given;
    /** @type {Step[]} */
    this.steps = [];
    this.at = 0;
    this.dragging = false;
    /** @type {Step[]|null} */
    this.held = null;
    const id = `axis-${given.axis}`;
    this.output = h("output", { class: "axis-value", for: id }, "–");
    this.ticks = h("div", { class: "ticks" });
    this.thumb = h("div", { class: "thumb" });
    this.track = h(
      "div",
      {
        class: "track", id, role: "slider", tabindex: "0", "aria-orientation": "horizontal",
        "aria-labelledby": `${id}-name`, data: { axis: given.axis },
      },
      h("div", { class: "rail" }), this.ticks, h("div", { class: "ticks" }, this.thumb),
    );
    this.element = h(
      "div",
      { class: "axis", data: { row: given.axis } },
      h(
        "div",
        { class: "axis-head" },
        h("span", { class: "axis-name", id: `${id}-name`, title: given.hint }, given.name, " ",
          h("code", {}, given.axis)),
        this.output,
      ),
      this.track,
    );
    this.listen();
  }

  /**
   * Show the steps, the present one marked. While the thumb is dragged they stay what they are,
   * or the same place under the pointer would come to mean another value.
   * @param {Step[]} steps
   */
  show(steps) {
    this.held = this.dragging ? steps : null;
    if (this.held) return;
    this.steps = steps;
    this.at = Math.max(0, steps.findIndex((each) => each.current));
    const every = Math.ceil(steps.length / LABELS);
    this.ticks.replaceChildren(...steps.map((step, i) => this.tick(step, i, every)));
    this.paint();
  }

  /** @param {Step} step @param {number} i @param {number} every */
  tick(step, i, every) {
    const kind = step.possible ? (step.fits ? "fits" : "tight") : "never";
    const shown = i % every === 0 || i === this.at;
    const tick = h(
      "span",
      { class: "step", data: { value: step.value, state: kind, effect: this.given.text(step) } },
      h("i", { class: `tick ${kind}` }),
      h("span", { class: `step-label${shown ? "" : " dim"}` }, String(step.value)),
    );
    tick.style.left = `${this.place(i)}%`;
    return tick;
  }

  /** Where a step stands, in percent of the rail. @param {number} i */
  place(i) {
    return this.steps.length < 2 ? 0 : (100 * i) / (this.steps.length - 1);
  }

  /** Draw thumb and texts for the present step. */
  paint() {
    const step = this.steps[this.at];
    if (!step) return;
    const { track } = this;
    this.output.textContent = String(step.value);
    this.element.classList.toggle("single", this.steps.length < 2);
    this.thumb.style.left = `${this.place(this.at)}%`;
    this.thumb.className = `thumb${step.possible && !step.fits ? " tight" : ""}`;
    track.setAttribute("aria-valuemin", "0");
    track.setAttribute("aria-valuemax", String(Math.max(0, this.steps.length - 1)));
    track.setAttribute("aria-valuenow", String(this.at));
    track.setAttribute("aria-valuetext", this.given.text(step));
    track.dataset.value = String(step.value);
    const open = this.steps.filter((each) => each.possible).length > 1;
    track.setAttribute("aria-disabled", String(!open));
  }

  listen() {
    const { track } = this;
    track.addEventListener("keydown", (event) => this.key(event));
    track.addEventListener("pointerdown", (event) => this.press(event));
    track.addEventListener("pointermove", (event) => this.move(event));
    track.addEventListener("pointerup", () => this.release());
    track.addEventListener("pointercancel", () => this.release());
    track.addEventListener("pointerleave", () => this.dragging || hideTip());
    track.addEventListener("focus", () => {
      if (track.matches(":focus-visible")) this.tipAt(this.at);
    });
    track.addEventListener("blur", hideTip);
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const moves = /** @type {Record<string, number>} */ ({
      ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 2, PageDown: -2,
      Home: -Infinity, End: Infinity,
    });
    if (!(event.key in moves) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    this.go(this.feasibleFrom(moves[event.key]));
    this.tipAt(this.at);
  }

  /** Return the step that a key leads to: the next possible one that way. @param {number} by */
  feasibleFrom(by) {
    const way = Math.sign(by);
    let [at, left] = [this.at, Math.abs(by)];
    for (let i = this.at + way; i >= 0 && i < this.steps.length && left > 0; i += way) {
      if (!this.steps[i].possible) continue;
      at = i;
      left -= 1;
    }
    return at;
  }

  /** @param {number} i */
  go(i) {
    const step = this.steps[i];
    if (i === this.at || !step || !step.possible) return;
    this.at = i;
    this.paint();
    this.given.choose(step);
  }

  /** @param {PointerEvent} event */
  press(event) {
    if (event.button !== 0) return;
    this.track.setPointerCapture(event.pointerId);
    this.dragging = true;
    const i = this.under(event);
    if (this.steps[i] && !this.steps[i].possible) {
      this.tipAt(i);
      announce(this.given.text(this.steps[i]));
    } else {
      this.go(i);
      this.tipAt(i);
    }
  }

  /** @param {PointerEvent} event */
  move(event) {
    const i = this.under(event);
    if (this.dragging && i !== this.at) this.go(this.nearestPossible(i));
    this.tipAt(this.dragging && !this.steps[i]?.possible ? i : this.dragging ? this.at : i);
  }

  release() {
    this.dragging = false;
    if (this.held) this.show(this.held);
    if (!this.track.matches(":hover")) hideTip();
  }

  /** @param {PointerEvent} event */
  under(event) {
    const box = this.ticks.getBoundingClientRect();
    const share = (event.clientX - box.left) / Math.max(1, box.width);
    const last = this.steps.length - 1;
    return Math.max(0, Math.min(last, Math.round(share * last)));
  }

  /** @param {number} i */
  nearestPossible(i) {
    for (let away = 0; away < this.steps.length; away += 1) {
      for (const each of [i - away, i + away]) {
        if (this.steps[each]?.possible) return each;
      }
    }
    return this.at;
  }

  /** @param {number} i */
  tipAt(i) {
    const step = this.steps[i];
    if (step) showTip(this.given.text(step), this.ticks.children[i]);
  }
}

/** Show words above an element. @param {string} text @param {Element} anchor */
export function showTip(text, anchor) {
  const tip = byId("tip");
  tip.textContent = text;
  tip.hidden = false;
  const box = anchor.getBoundingClientRect();
  const { width, height } = tip.getBoundingClientRect();
  const middle = box.left + box.width / 2;
  const left = Math.min(window.innerWidth - width - 8, Math.max(8, middle - width / 2));
  const above = box.top - height - 8;
  tip.style.transform = `translate(${left}px, ${above < 4 ? box.bottom + 10 : above}px)`;
}

/** Take the words away. */
export function hideTip() {
  byId("tip").hidden = true;
}
