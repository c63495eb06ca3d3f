// @ts-check
// A slider over the steps that an axis can take, and a field for any other number. Not every value
// is possible, so it steps over those that are not, says why when one is asked for, and tells apart
// what is impossible from what merely does not fit memory.

import { announce, byId, h } from "./dom.js";

/**
 * @typedef {{value: any, possible: boolean, fits: boolean, reason: string|null,
 *   time_s: number|null, tokens_per_s_per_gpu?: number|null, current: boolean,
 *   set?: Record<string, any>, along?: string[]}} Step
 */

const DIGIT_PX = 7.4; // of a label, at its largest
const BETWEEN_PX = 5;
const RAIL_PX = 200; // where it is not in sight, and cannot be measured

/** One axis as a row: name, value, rail with a tick for each step. */
export class Slider {
  /**
   * @param {{axis: string, name: string, hint: string, least: number, most: number,
   *   text: (step: Step) => string, choose: (step: Step) => void, type: (value: number) => void,
   *   grab: (held: boolean) => void}} given
   */
  constructor(given) {
    this.given = given;
    /** @type {Step[]} */
    this.steps = [];
    this.at = 0;
    this.dragging = false;
    /** @type {Step[]|null} */
    this.held = null;
    /** The steps that are drawn, as text. */
    this.drawn = "";
    this.wide = RAIL_PX;
    const id = `axis-${given.axis}`;
    this.number = h("input", {
      type: "number", class: "axis-value", id: `number-${given.axis}`, min: given.least,
      max: given.most, step: "1", inputmode: "numeric", autocomplete: "off", title: given.hint,
      "aria-labelledby": `${id}-name`, "aria-describedby": `number-${given.axis}-error`,
    });
    this.fault = h("p", { class: "field-error", id: `number-${given.axis}-error`, role: "alert", hidden: true });
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
        this.number,
      ),
      this.fault,
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
    const drawn = JSON.stringify(steps);
    this.steps = steps;
    this.at = Math.max(0, steps.findIndex((each) => each.current));
    if (drawn !== this.drawn) this.drawTicks();
    this.drawn = drawn;
    this.paint();
  }

  drawTicks() {
    const labelled = this.labelled();
    this.ticks.replaceChildren(...this.steps.map((step, i) => this.tick(step, labelled.includes(i))));
    this.steps.forEach((_, i) => { this.ticks.children[i].style.left = `${this.place(i)}%`; });
  }

  /** Return the steps whose labels stand beside one another: the present one, the ends, others. */
  labelled() {
    const last = this.steps.length - 1;
    /** @type {number[][]} */
    const taken = [];
    const order = [this.at, 0, last, ...this.steps.keys()];
    return order.filter((i) => {
      const half = (String(this.steps[i]?.value).length * DIGIT_PX + BETWEEN_PX) / 2;
      const at = (this.wide * this.place(i)) / 100;
      if (taken.some(([from, to]) => at + half > from && at - half < to)) return false;
      taken.push([at - half, at + half]);
      return true;
    });
  }

  /** @param {Step} step @param {boolean} shown */
  tick(step, shown) {
    const kind = step.possible ? (step.fits ? "fits" : "tight") : "never";
    return h(
      "span",
      { class: "step", data: { value: step.value, state: kind, effect: this.given.text(step) } },
      h("i", { class: `tick ${kind}` }),
      h("span", { class: `step-label${shown ? "" : " dim"}` }, String(step.value)),
    );
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
    // While somebody types, their text stands.
    if (document.activeElement !== this.number || this.number.dataset.typed === undefined) {
      this.number.value = String(step.value);
      this.mark("");
    }
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
    const { number } = this;
    number.addEventListener("input", () => { number.dataset.typed = "1"; });
    number.addEventListener("change", () => this.typed());
    number.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
      const way = { ArrowUp: 1, ArrowDown: -1 }[event.key];
      if (!way) return;
      event.preventDefault();
      this.go(this.feasibleFrom(way));
    });
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
    // Observed: to ask for the width between two changes would lay the page out for each slider.
    new ResizeObserver(([{ contentRect: { width } }]) => {
      if (!width || width === this.wide) return;
      this.wide = width;
      const labelled = this.labelled();
      [...this.ticks.children].forEach((tick, i) => {
        tick.lastElementChild?.classList.toggle("dim", !labelled.includes(i));
      });
    }).observe(this.ticks);
  }

  /** Take the number that was typed, or say at the field why it cannot be one. */
  typed() {
    const { name, least, most } = this.given;
    const value = Number(this.number.value);
    delete this.number.dataset.typed;
    if (this.number.value.trim() === "" || !Number.isInteger(value) || value < least || value > most) {
      this.mark(`${name}: a whole number from ${least.toLocaleString("en")} to ${most.toLocaleString("en")}`);
      return;
    }
    this.mark("");
    const i = this.steps.findIndex((each) => each.value === value);
    if (i < 0 || !this.steps[i].possible) this.given.type(value);
    else this.go(i);
  }

  /** Say what is wrong with what was typed; "" where nothing is. @param {string} fault */
  mark(fault) {
    this.number.setAttribute("aria-invalid", String(Boolean(fault)));
    this.fault.textContent = fault;
    this.fault.hidden = !fault;
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
    this.given.grab(true);
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
    this.given.grab(false);
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
