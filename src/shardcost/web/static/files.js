// @ts-check
// Files that people bring: pasted, chosen or dropped anywhere. The server says what a file means;
// only then is it offered for use. Names and contents are shown as text, never as markup.

import { postFile } from "./api.js";
import { announce, byId, h } from "./dom.js";
import { told, unflagged } from "./format.js";

const MOST = 64 * 1024 * 1024;
const KB = 1024;

/** What may be brought, by what asks for it. @type {Record<string, [string, string]>} */
const KINDS = {
  config: ["A model from its config.json", "Paste the config.json of a Hugging Face model, choose the file, or drop it anywhere on the page."],
  profile: ["A machine from a file", "Paste or choose a shardcost profile (.toml), the output of nvidia-smi topo -m, an NCCL topology or log, or drop it anywhere on the page."],
  any: ["Open a file", "A config.json, a profile, the output of nvidia-smi topo -m or of nccl-tests, an NCCL topology or log, a profiler trace: paste it, choose it, or drop it anywhere on the page."],
};

/** The dialog for files. */
export class Files {
  /**
   * @param {(patch: Record<string, any>) => void} use
   * @param {() => {on?: string, network?: string, catalog: any}} place the page's machine, and all others
   */
  constructor(use, place) {
    this.use = use;
    this.place = place;
    this.dialog = byId("file-dialog");
    /** @type {any} */
    this.found = null;
    /** @type {{content: Blob|string, name: string}|null} */
    this.file = null;
    this.asked = 0;
    this.build();
    this.listen();
  }

  build() {
    this.title = h("h2", { id: "file-title" });
    this.hint = h("p", { class: "hint", id: "file-hint" });
    this.text = h("textarea", {
      id: "file-text", rows: "9", spellcheck: "false", autocomplete: "off",
      "aria-labelledby": "file-title", "aria-describedby": "file-hint",
    });
    this.input = h("input", { type: "file", id: "file-input", hidden: true, "aria-label": "File" });
    this.message = h("div", { id: "drop-message", class: "file-message", "aria-live": "polite" });
    this.useButton = h("button", {
      type: "button", class: "primary", id: "file-use", on: { click: () => this.apply() },
    }, "Use it");
    this.readButton = h("button", {
      type: "button", id: "file-read", on: { click: () => this.readText() },
    }, "Read it");
    this.dialog.append(
      h("div", { class: "dialog-head" }, this.title, h("button", {
        type: "button", class: "plain icon", "aria-label": "Close", title: "Close (Esc)",
        on: { click: () => this.dialog.close() },
      }, "×")),
      this.hint, this.text, this.input, this.message,
      h("div", { class: "dialog-actions" },
        h("button", { type: "button", id: "file-choose", on: { click: () => this.input.click() } },
          "Choose file…"),
        this.readButton, this.useButton),
    );
  }

  listen() {
    byId("open-file").addEventListener("click", () => this.open("any"));
    byId("paste-config").addEventListener("click", () => this.open("config"));
    byId("paste-profile").addEventListener("click", () => this.open("profile"));
    this.input.addEventListener("change", () => {
      const [file] = this.input.files;
      if (file) this.readFile(file);
      this.input.value = "";
    });
    this.text.addEventListener("paste", () => window.setTimeout(() => this.readText(), 0));
    const over = byId("drop-overlay");
    window.addEventListener("dragenter", (event) => this.drag(event, over, true));
    window.addEventListener("dragover", (event) => this.drag(event, over, true));
    window.addEventListener("dragleave", (event) => {
      if (!event.relatedTarget) over.hidden = true;
    });
    window.addEventListener("drop", (event) => {
      this.drag(event, over, false);
      const file = event.dataTransfer?.files[0];
      if (!file) return;
      this.open("any");
      this.readFile(file);
    });
  }

  /** @param {DragEvent} event @param {any} over @param {boolean} shown */
  drag(event, over, shown) {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    over.hidden = !shown;
  }

  /** @param {string} kind */
  open(kind) {
    [this.title.textContent, this.hint.textContent] = KINDS[kind];
    this.reset();
    this.text.value = "";
    if (!this.dialog.open) this.dialog.showModal();
    this.text.focus();
  }

  reset() {
    this.found = null;
    this.dialog.classList.remove("read");
    this.useButton.hidden = true;
    this.message.replaceChildren();
    this.message.className = "file-message";
  }

  readText() {
    const text = this.text.value;
    if (text.trim()) this.read(text, "pasted");
    else this.fail("nothing was pasted yet");
  }

  /** @param {File} file */
  readFile(file) {
    this.reset();
    if (file.size > MOST) {
      this.fail(`${file.name} has ${Math.round(file.size / KB / KB)} MiB: more than is read here`);
      return;
    }
    this.text.value = "";
    this.read(file, file.name);
  }

  /**
   * @param {Blob|string} content @param {string} name
   * @param {Record<string, string>} [stated] of the machine that it was measured on
   */
  async read(content, name, stated) {
    const asked = ++this.asked;
    this.reset();
    this.file = { content, name };
    this.message.append(h("p", { class: "hint" }, stated ? "Calibrating: this may take half a minute…" : `Reading ${name}…`));
    try {
      const found = await postFile(content, name, stated);
      if (asked === this.asked) this.show(found);
    } catch (error) {
      if (asked === this.asked) this.fail(/** @type {Error} */ (error).message);
    }
  }

  /** @param {any} found */
  show(found) {
    this.reset();
    this.found = found;
    this.dialog.classList.add("read"); // what the file says takes the place of what could be pasted
    const lines = [found.words ?? []].flat();
    this.message.append(
      h("p", { class: "file-kind" }, `${found.name}: ${found.kind}`),
      h("pre", { tabindex: "0" }, lines.join("\n").trim()),
    );
    if (found.measured_on) this.message.append(this.machine(found.measured_on));
    const words = found.use ? `“Use it” takes ${found.words_on_use}.` : `Cannot be used yet: ${found.words_on_use}.`;
    this.message.append(h("p", { id: "file-words" }, words));
    this.offer(found.use ? "Use it" : "Calibrate", Boolean(found.use || found.measured_on));
    announce(`${found.name}: ${found.kind}. ${lines.join(". ")}`);
  }

  /** @param {string} name @param {boolean} shown */
  offer(name, shown) {
    this.useButton.textContent = name;
    this.useButton.hidden = !shown;
    if (shown) this.useButton.focus();
  }

  /**
   * Return the fields that say what measurements were made on: what the file says, else the page's machine.
   * @param {{device: string|null, on: string|null, network: string|null, gpus: number|null}} known
   */
  machine(known) {
    const { on, network, catalog } = this.place();
    const { clusters = [], networks = [] } = catalog ?? {};
    const chosen = known.on ?? on ?? clusters[0]?.name;
    const usual = clusters.find((/** @type {any} */ each) => each.name === chosen)?.usual_network;
    const joined = known.network ?? (known.on ? null : network) ?? usual;
    const names = (/** @type {any[]} */ all) => all.map(({ name }) => h("option", { value: name }, name));
    const field = (/** @type {string} */ id, /** @type {string} */ label, /** @type {any} */ input) => {
      input.id = id;
      input.addEventListener("change", () => {
        if (this.found) this.found.use = null;
        this.offer("Calibrate", true);
      });
      return h("div", { class: "field" }, h("label", { for: id }, label), input);
    };
    const box = h("fieldset", { class: "measured-on" },
      h("legend", {}, known.device ? `Measured on ${known.device}` : "Measured on"),
      field("file-on", known.on ? "Machine" : "Machine (the page's)", h("select", {}, names(clusters))),
      field("file-network", "Network between nodes", h("select", {}, names(networks))),
      known.gpus !== null && field("file-gpus", "GPUs that took part",
        h("input", { type: "number", min: 1, max: 1048576, step: 1, value: known.gpus || "" })));
    box.querySelector("#file-on").value = chosen;
    box.querySelector("#file-network").value = joined ?? "";
    return box;
  }

  /** The name of the file, as the server shows it. */
  shown() {
    return this.file?.name.split(/[/\\]/).at(-1)?.trim().slice(-80) ?? "";
  }

  /** @param {string} line */
  fail(line) {
    this.reset();
    this.message.classList.add("failed");
    // A file keeps the letters of its name.
    this.message.append(h("p", {}, line.startsWith(`${this.shown()}:`) ? unflagged(line) : told(line)));
  }

  apply() {
    if (this.file && this.found?.measured_on && !this.found.use) {
      const stated = Object.fromEntries(["on", "network", "gpus"].map((name) => [
        name, this.message.querySelector(`#file-${name}`)?.value ?? ""]).filter(([, value]) => value));
      this.read(this.file.content, this.file.name, stated);
      return;
    }
    if (!this.found?.use) return;
    this.dialog.close();
    this.use(this.found.use);
  }
}
