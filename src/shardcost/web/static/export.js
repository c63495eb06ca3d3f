// @ts-check
// What leaves the page: the estimate as files, a panel's picture and rows, a link. A saved picture
// stands alone: colours and fonts that the style sheets gave are written into it.

import { download, post } from "./api.js";
import { announce, byId, h } from "./dom.js";

const SVG = "http://www.w3.org/2000/svg";
/** Properties of a style sheet that a saved picture needs, as attributes of SVG. */
const KEPT = [
  "fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray",
  "stroke-linecap", "stroke-linejoin", "opacity", "font-family", "font-size", "font-weight",
  "font-style", "text-anchor", "dominant-baseline", "visibility", "display", "stop-color",
  "font-variant-numeric", "letter-spacing", "paint-order",
];

const BETWEEN_DOWNLOADS_MS = 200;

/** @param {Blob} blob @param {string} name */
export function save(blob, name) {
  const url = URL.createObjectURL(blob);
  const link = h("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  window.setTimeout(() => URL.revokeObjectURL(url), 10_000);
  announce(`${name} saved`);
}

/** @param {string} text */
const slug = (text) => text.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "").slice(0, 80);

// ------------------------------------------------------------------------------ the estimate

const FILES = /** @type {const} */ ({
  csv: ["api/export/csv", "csv"], trace: ["api/export/trace", "json"], html: ["api/export/html", "html"],
});

/**
 * Wire the menu of the whole estimate.
 * @param {() => any} ask as it is sent
 * @param {() => any} estimate
 * @param {(line: string) => void} fail
 */
export function exportMenu(ask, estimate, fail) {
  const menu = byId("export-menu");
  closesItself(menu);
  menu.addEventListener("click", async (/** @type {MouseEvent} */ event) => {
    const button = /** @type {HTMLElement|null} */ (/** @type {Element} */ (event.target).closest("[data-export]"));
    if (!button) return;
    menu.open = false;
    const opener = menu.querySelector("summary");
    opener.focus();
    const label = opener.querySelector("span");
    const [kind, idle] = [button.dataset.export ?? "", label.textContent];
    if (opener.getAttribute("aria-busy")) return;
    if (kind === "html") {
      label.textContent = "Drawing…";
      opener.setAttribute("aria-busy", "true");
      announce("the report is being drawn");
    }
    try {
      await exported(kind, ask(), estimate());
    } catch (error) {
      fail(/** @type {Error} */ (error).message);
    } finally {
      if (kind === "html") {
        label.textContent = idle;
        opener.removeAttribute("aria-busy");
      }
    }
  });
}

/** @param {string} kind @param {any} ask @param {any} estimate */
async function exported(kind, ask, estimate) {
  const name = `shardcost-${slug(estimate?.title ?? "estimate")}`;
  if (kind === "commands") {
    const { command, python } = await post("api/commands", ask);
    showTexts("The same from a terminal or from Python", [["Command line", command], ["Python", python]]);
  } else if (kind === "launch") {
    await (await import("./launch.js")).showLaunch(ask);
  } else if (kind === "json") {
    const text = JSON.stringify(estimate, null, 2);
    save(new Blob([text], { type: "application/json" }), `${name}.json`);
  } else {
    const [path, suffix] = FILES[/** @type {keyof FILES} */ (kind)];
    const middle = kind === "trace" ? ".trace" : "";
    save(await download(path, ask), `${name}${middle}.${suffix}`);
  }
}

/** Show texts, each with a button that copies it. @param {string} title @param {string[][]} texts */
export function showTexts(title, texts) {
  const dialog = byId("text-dialog");
  dialog.replaceChildren(
    h("div", { class: "dialog-head" }, h("h2", { id: "text-title" }, title), h("button", {
      type: "button", class: "plain icon", "aria-label": "Close", title: "Close (Esc)",
      on: { click: () => dialog.close() },
    }, "×")),
    ...texts.map(([label, text]) => h("div", { class: "text-block" },
      h("div", { class: "text-head" }, h("h3", {}, label), copyButton(text, label)),
      h("pre", { tabindex: "0", data: { text: slug(label) } }, h("code", {}, wordsOf(text))))),
  );
  dialog.showModal();
}

/** Words that stay whole where a line breaks: "--dp" is one. @param {string} text */
function wordsOf(text) {
  return text.split(/(\s+)/).map((word) => (word.trim() ? h("span", { class: "word" }, word) : word));
}

/** @param {string} text @param {string} label */
function copyButton(text, label) {
  const button = h("button", { type: "button", class: "small", "aria-label": `Copy: ${label}` }, "Copy");
  button.addEventListener("click", async () => {
    button.textContent = (await copied(text)) ? "Copied" : "Press Ctrl+C";
    window.setTimeout(() => { button.textContent = "Copy"; }, 1600);
  });
  return button;
}

/** Put a text on the clipboard, if the browser allows it. @param {string} text */
export async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    announce("copied");
    return true;
  } catch {
    return false;
  }
}

// -------------------------------------------------------------------------------- a panel

/**
 * Return the menu that saves a panel.
 * @param {string} id
 * @param {HTMLElement} root
 * @param {string} title
 * @param {() => Promise<any[][]>} rows
 */
export function saveMenu(id, root, title, rows) {
  const items = ["svg", "png", "csv"].map((kind) =>
    h("button", { type: "button", data: { save: kind } }, kind.toUpperCase()));
  const menu = h("details", { class: "menu", id: `save-${id}` },
    h("summary", { class: "plain", title: `Save ${title}` }, "Save"),
    h("div", { class: "menu-items" }, items));
  closesItself(menu);
  menu.addEventListener("click", async (event) => {
    const kind = /** @type {HTMLElement} */ (event.target).dataset?.save;
    if (!kind) return;
    menu.removeAttribute("open");
    try {
      await saved(kind, root, title, rows);
    } catch (error) {
      announce(/** @type {Error} */ (error).message);
      showTexts("This could not be saved", [["Why", /** @type {Error} */ (error).message]]);
    }
  });
  return menu;
}

/** @param {string} kind @param {HTMLElement} root @param {string} title @param {() => Promise<any[][]>} rows */
async function saved(kind, root, title, rows) {
  const about = `${title}: ${byId("headline-title").textContent}`;
  const name = `shardcost-${slug(about)}`;
  if (kind === "csv") {
    const text = (await rows()).map((row) => row.map(cell).join(",")).join("\r\n");
    save(new Blob([`${text}\r\n`], { type: "text/csv" }), `${name}.csv`);
    return;
  }
  const charts = /** @type {SVGSVGElement[]} */ ([...root.querySelectorAll("svg.chart")]);
  const shown = charts.filter((each) => each.getBoundingClientRect().width > 0);
  if (!shown.length) throw new Error("there is no picture in this tab yet");
  for (const [i, chart] of shown.entries()) {
    // Browsers drop a download that starts while the one before it is being set up.
    if (i > 0) await new Promise((resume) => window.setTimeout(resume, BETWEEN_DOWNLOADS_MS));
    const part = shown.length > 1 ? `${name}-${i + 1}` : name;
    const alone = standalone(chart, chart.getAttribute("aria-label") ?? about);
    if (kind === "svg") save(alone.blob, `${part}.svg`);
    else save(await asPng(alone), `${part}.png`);
  }
}

/** A cell of CSV; one that a spreadsheet would run as a formula is made text. @param {any} value */
function cell(value) {
  if (typeof value === "number") return String(value);
  let text = value === null || value === undefined ? "" : String(value);
  if (/^[=+\-@\t\r]/.test(text)) text = `'${text}`;
  return /[",\r\n]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
}

/**
 * Return a chart as a file of its own.
 * @param {SVGSVGElement} chart
 * @param {string} title
 */
export function standalone(chart, title) {
  const { width, height } = chart.getBoundingClientRect();
  const copy = /** @type {SVGSVGElement} */ (chart.cloneNode(true));
  inline(chart, copy);
  borrow(copy);
  copy.setAttribute("xmlns", SVG);
  copy.setAttribute("width", String(width));
  copy.setAttribute("height", String(height));
  if (!copy.hasAttribute("viewBox")) copy.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const ground = document.createElementNS(SVG, "rect");
  ground.setAttribute("width", "100%");
  ground.setAttribute("height", "100%");
  ground.setAttribute("fill", getComputedStyle(byId("tab-panels")).backgroundColor);
  const head = document.createElementNS(SVG, "title");
  head.textContent = title;
  copy.prepend(head, ground);
  const text = new XMLSerializer().serializeToString(copy);
  return { blob: new Blob([text], { type: "image/svg+xml" }), width, height };
}

/** Write what the style sheets say into the copy. @param {Element} from @param {Element} to */
function inline(from, to) {
  const style = getComputedStyle(from);
  for (const name of KEPT) {
    const value = style.getPropertyValue(name);
    if (value) to.setAttribute(name, value.replace(/url\("?[^")]*#([^")]+)"?\)/g, "url(#$1)"));
  }
  for (const name of ["style", "class", "tabindex"]) to.removeAttribute(name);
  const [sources, copies] = [[...from.children], [...to.children]];
  sources.forEach((each, i) => inline(each, copies[i]));
}

/** Take along patterns and the like that the chart refers to but does not hold. @param {Element} copy */
function borrow(copy) {
  const text = new XMLSerializer().serializeToString(copy);
  const names = new Set([...text.matchAll(/url\(#([\w-]+)\)/g)].map(([, name]) => name));
  for (const name of names) {
    if (copy.querySelector(`#${CSS.escape(name)}`)) continue;
    const source = document.getElementById(name);
    if (!source) continue;
    const taken = /** @type {Element} */ (source.cloneNode(true));
    inline(source, taken);
    copy.prepend(taken);
  }
}

/** @param {{blob: Blob, width: number, height: number}} picture @returns {Promise<Blob>} */
async function asPng({ blob, width, height }) {
  const url = URL.createObjectURL(blob);
  try {
    const image = new Image();
    image.src = url;
    await image.decode();
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [Math.ceil(2 * width), Math.ceil(2 * height)];
    canvas.getContext("2d")?.drawImage(image, 0, 0, canvas.width, canvas.height);
    return await new Promise((resolve, reject) => {
      canvas.toBlob((made) => (made ? resolve(made) : reject(new Error("no PNG could be made"))));
    });
  } finally {
    URL.revokeObjectURL(url);
  }
}

/** A menu closes on Escape and when something else is clicked. @param {any} menu */
function closesItself(menu) {
  document.addEventListener("click", (event) => {
    if (!menu.contains(/** @type {Node} */ (event.target))) menu.open = false;
  });
  menu.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    if (event.key !== "Escape" || !menu.open) return;
    event.stopPropagation();
    menu.open = false;
    menu.querySelector("summary").focus();
  });
}
