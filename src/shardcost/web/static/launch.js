// @ts-check
// The commands that start a layout, each with what its tool has no flag for.

import { post } from "./api.js";
import { byId, h } from "./dom.js";
import { showTexts } from "./export.js";

/** Show how each tool starts the layout of a question. @param {any} ask as it is sent */
export async function showLaunch(ask) {
  const { launches } = await post("api/launch", ask);
  showTexts("Start this layout", launches.map((/** @type {any} */ each) => [each.title, each.script]));
  byId("text-dialog").querySelectorAll(".text-block").forEach(
    (/** @type {HTMLElement} */ block, /** @type {number} */ i) => {
      const { notes, source } = launches[i];
      block.append(h("ul", { class: "launch-notes" }, notes.map((/** @type {string} */ note) => h("li", {}, note)),
        h("li", {}, "Flags: ", h("a", { href: source, rel: "noreferrer" }, source))));
    });
}
