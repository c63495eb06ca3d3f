// What panels have in common: asking once at a time, dimming, one line for errors, fields, tables.

import { html } from "../charts.js";
import { told, words as spaced } from "../format.js";

const PATIENCE_MS = 150;

/**
 * Return a panel's frame in `root`: `body` is what is dimmed while `run` waits or after an error.
 *
 * `run(work, signal)` awaits `work(signal)`; a later call ends an earlier one.
 */
export function framed(root) {
  const bar = html("div", { class: "panel-bar", hidden: true });
  const error = html("p", { class: "panel-error", role: "alert", hidden: true });
  const body = html("div", { class: "panel-body" });
  root.append(bar, error, body);
  let current = null;

  async function run(work, outer = null) {
    current?.abort();
    const own = new AbortController();
    current = own;
    const stop = () => own.abort();
    outer?.addEventListener("abort", stop, { once: true });
    const dim = setTimeout(() => {
      body.classList.add("is-waiting");
      bar.hidden = false;
    }, PATIENCE_MS);
    try {
      await work(own.signal);
      if (own.signal.aborted) return;
      error.hidden = true;
      body.classList.remove("is-stale");
    } catch (problem) {
      if (own.signal.aborted || problem?.name === "AbortError") return;
      if (!problem?.status && problem?.status !== 0) console.error(problem);
      error.textContent = told(problem?.message ?? String(problem));
      error.hidden = false;
      body.classList.add("is-stale");
    } finally {
      clearTimeout(dim);
      outer?.removeEventListener("abort", stop);
      if (current === own) {
        body.classList.remove("is-waiting");
        bar.hidden = true;
      }
    }
  }

  return { body, error, run };
}

/** Return a labelled select; `set(options, value)` fills it. Options: names or [value, text]. */
export function choice(id, label, options, value, onChange) {
  const select = html("select", { id, on: { change: () => onChange(select.value) } });
  const node = html("label", { class: "panel-field", for: id }, html("span", {}, label), select);
  function set(next, chosen = select.value) {
    const pairs = next.map((each) => (Array.isArray(each) ? each : [each, words(each)]));
    select.replaceChildren(
      ...pairs.map(([name, text]) => html("option", { value: name }, text)),
    );
    const known = pairs.some(([name]) => String(name) === String(chosen));
    if (known) select.value = String(chosen);
  }
  set(options, value);
  return { node, select, set, get value() { return select.value; } };
}

/** Return a labelled field for a text or a number. */
export function field(id, label, value, onChange, attributes = {}) {
  const input = html("input", {
    id,
    value,
    autocomplete: "off",
    spellcheck: "false",
    ...attributes,
    on: { change: () => onChange(input.value) },
  });
  const node = html("label", { class: "panel-field", for: id }, html("span", {}, label), input);
  return { node, input, get value() { return input.value; } };
}

/**
 * Return a table that scrolls in its own box.
 *
 * Cells are texts or nodes; a row's `reason` fills what they leave.
 */
export function table(caption, head, rows, { right = [] } = {}) {
  const cell = (name, content, index, extra = {}) =>
    html(name, { class: right.includes(index) ? "right" : null, ...extra }, content);
  return html(
    "div",
    { class: "table-box", tabindex: "0", role: "region", "aria-label": caption },
    html(
      "table",
      { class: "panel-table" },
      html("caption", { class: "unseen" }, caption),
      html(
        "thead",
        {},
        html("tr", {}, head.map((each, index) => (each ? cell("th", each, index, { scope: "col" }) : cell("td", each, index)))),
      ),
      html(
        "tbody",
        {},
        rows.map((row) =>
          html(
            "tr",
            { class: row.current ? "is-current" : null },
            row.cells.map((each, index) =>
              index ? cell("td", each, index) : cell("th", each, index, { scope: "row" }),
            ),
            row.reason && html(
              "td",
              { colspan: head.length - row.cells.length },
              html("span", { class: "panel-reason" }, row.reason),
            ),
          ),
        ),
      ),
    ),
  );
}

/** Return a line of text that stands where a picture would be. */
export function empty(text) {
  return html("p", { class: "panel-empty" }, text);
}

/** Return a name as people write it. */
export function words(name) {
  return spaced(String(name)).replace(/^kv cache$/, "KV cache").replace(/^gemm$/, "GEMM");
}

/** Return the question's part that names the machine. */
export function machine(ask) {
  const { on, profile, network } = ask;
  return { ...(profile ? { profile } : { on }), ...(network ? { network } : {}) };
}
