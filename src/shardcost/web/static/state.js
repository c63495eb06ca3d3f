// @ts-check
// The question that the page asks, and its two other forms: the URL (so that a link gives exactly
// the same page) and the body of a request. A pasted config or profile travels deflated in the
// fragment, which never reaches the server's log.

import { TABLE } from "./options.js";

/** @typedef {Record<string, any>} Ask */
/**
 * @typedef {{name: string, kind: keyof KINDS, label: string, hint: string, phases: string[],
 *   choices: any[], default: any, least: number, most: number, required: boolean, axis: string, said: string, place: string,
 *   start: Record<string, number>, example: string, group?: string, fixed?: boolean}} Option
 */

export const TABS = ["timeline", "scaling", "collective", "ring", "roofline", "memory", "load", "plan"];
export const PHASES = ["train", "prefill", "decode"];

/** The options of an estimate, in the order that a URL shows them. @type {Record<string, Option>} */
export const OPTIONS = Object.fromEntries(TABLE.options.map((each) => [each.name, each]));
/** Fields of a layout. @type {string[]} */
export const LAYOUT = TABLE.options.filter((each) => each.group === "layout").map((each) => each.name);
/** What a search takes beside the question; in a URL each begins with plan_. @type {Option[]} */
export const PLAN = [TABLE.search[0], TABLE.search[1], OPTIONS.gpus, OPTIONS.batch, ...TABLE.search.slice(2)];
/** What a search may fix; in a URL each begins with fix_. @type {Option[]} */
export const AXES = TABLE.axes;
/** Of what a search takes several values, though no layout has it: number formats, engines, lengths. @type {Option[]} */
export const SEVERAL = TABLE.options.filter((each) => each.axis === "question");
/** What a search optimises: label by name. @type {Record<string, string>} */
export const OBJECTIVES = TABLE.objectives;
const SEARCHED = [...[...PLAN, ...SEVERAL].map(({ name }) => `plan_${name}`), ...AXES.map(({ name }) => `fix_${name}`)];
/**
 * What a load has beside the question: its options, which of the question's it takes, and what it begins with.
 * @type {{first: Record<string, string>, taken: string[], options: (Option & {otherwise: string})[]}}
 */
export const LOAD = TABLE.load;
/** What is looked at in the tabs, where it is not what they begin with. */
export const VIEW = [
  "timeline_of", "scaling_vary", "ring_collective", "ring_algorithm", "ring_n", "ring_size",
  "collective_group", "collective_name", "collective_gpus", "collective_nodes",
  "collective_library", "collective_mode", "plan_for",
  ...LOAD.options.map(({ name }) => `load_${name}`),
];
const SHORT = /^[\w.\-+%=:, ]{1,80}$/u;

const NAME = /^[\w.\-+/:, ]{1,100}$/u;
const MOST = 1e12;

/** Kinds of values: from the text of a URL to a value, undefined where it is not one. */
const KINDS = {
  /** @param {string} text */
  name: (text) => (NAME.test(text) ? text : undefined),
  /** @param {string} text */
  word: (text) => (NAME.test(text) ? text : undefined),
  /** @param {string} text */
  whole: (text) => (/^\d{1,12}$/.test(text) && Number(text) <= MOST ? Number(text) : undefined),
  /** @param {string} text */
  number: (text) =>
    /^\d{1,9}(\.\d{1,9})?$/.test(text) && Number(text) > 0 ? Number(text) : undefined,
  /** @param {string} text */
  flag: (text) => ({ true: true, false: false, 1: true, 0: false })[text],
  /** @param {string} text */
  phase: (text) => (PHASES.includes(text) ? text : undefined),
};

/**
 * The fields of a question, in the order that a URL shows them.
 * @type {Record<string, {kind: keyof KINDS, phases: string[]}>}
 */
const FIELDS = { ...OPTIONS, phase: { kind: "phase", phases: PHASES } };

/** What a phase needs, with where the page begins. @type {Record<string, Ask>} */
export const NEEDED = Object.fromEntries(PHASES.map((phase) => [phase, Object.fromEntries(
  TABLE.options.filter(({ start }) => phase in start).map(({ name, start }) => [name, start[phase]]))]));

/** @returns {Ask} what the page asks when nobody has asked anything else */
export const initial = () => ({ ...TABLE.first });

/** Does a field belong to a phase? @param {string} field @param {string} phase */
export function applies(field, phase) {
  return Object.hasOwn(FIELDS, field) && FIELDS[field].phases.includes(phase);
}

/**
 * Return the question as it is sent: what is set and belongs to the phase, in a fixed order.
 * @param {Ask} ask
 * @returns {Ask}
 */
export function body(ask) {
  /** @type {Ask} */
  const sent = {};
  if (ask.config) sent.config = ask.config;
  if (ask.profile) sent.profile = ask.profile;
  for (const [field, { kind }] of Object.entries(FIELDS)) {
    const value = ask[field];
    if (value === null || value === undefined || value === "") continue;
    if (!applies(field, ask.phase) || (kind === "flag" && value === false)) continue;
    if ((field === "model" && ask.config) || (field === "on" && ask.profile)) continue;
    sent[field] = value;
  }
  return sent;
}

/**
 * Return a question with some of its fields changed; null takes a field back.
 * A catalog name takes the place of a pasted file, and the other way round.
 * @param {Ask} ask
 * @param {Ask} patch
 * @returns {Ask}
 */
export function patched(ask, patch) {
  const next = { ...ask, ...patch };
  if (patch.model) delete next.config;
  if (patch.on) delete next.profile;
  if (patch.phase && patch.phase !== ask.phase) {
    for (const [field, value] of Object.entries(NEEDED[patch.phase])) {
      if (!next[field] || (field === "batch" && !patch.batch)) next[field] = value;
    }
    if (!("software" in patch)) next.software = null; // each phase has its own usual one
  }
  for (const field of Object.keys(next)) if (next[field] === null) delete next[field];
  return next;
}

/** Do two questions ask the same? @param {Ask} one @param {Ask} other */
export function same(one, other) {
  return one.trace === other.trace && JSON.stringify(body(one)) === JSON.stringify(body(other));
}

// ------------------------------------------------------------------------------- the URL

const FILES = ["config", "profile", "trace"];
const PINNED = "pin_"; // before the files of the pinned question
const LINK_LIMIT = 48 * 1024; // characters of the fragment: more is not a link that can be sent
const FILE_LIMIT = 1024 * 1024; // bytes that a fragment may unfold to

/**
 * Return the query and the fragment for a question.
 * @param {Ask} ask
 * @param {string} tab
 * @param {Record<string, string>} [plan] texts of the search
 * @param {Record<string, string>} [view] texts of what the tabs show
 * @param {Ask|null} [pin] the question that is kept beside it
 * @returns {Promise<{url: string, left: string[]}>} left: files too large for a link
 */
export async function toUrl(ask, tab, plan = {}, view = {}, pin = null) {
  const query = queryOf(ask);
  for (const name of SEARCHED) if (plan[name]) query.set(name, plan[name]);
  for (const name of VIEW) if (view[name]) query.set(name, view[name]);
  if (tab !== TABS[0]) query.set("tab", tab);
  if (pin) query.set("pin", String(queryOf(pin)));
  const [parts, left] = [/** @type {string[]} */ ([]), /** @type {string[]} */ ([])];
  for (const [asked, before] of /** @type {[Ask, string][]} */ ([[ask, ""], ...(pin ? [[pin, PINNED]] : [])])) {
    for (const name of FILES) {
      if (!asked[name] || (before && name === "trace")) continue;
      const packed = await pack(name === "config" ? JSON.stringify(asked.config) : asked[name]);
      if (packed.length > LINK_LIMIT) left.push(name);
      else parts.push(`${before}${name}=${packed}`);
    }
  }
  return { url: `?${query}${parts.length ? `#${parts.join("&")}` : ""}`, left };
}

/** @param {Ask} ask */
function queryOf(ask) {
  const query = new URLSearchParams();
  for (const [field, value] of Object.entries(body(ask))) {
    if (!FILES.includes(field)) query.set(field, String(value));
  }
  return query;
}

/**
 * Return the question in a URL; what cannot be read is left out, with a line on each.
 * @param {{search: string, hash: string}} location
 * @returns {Promise<{ask: Ask, tab: string, plan: Record<string, string>,
 *   view: Record<string, string>, pin: Ask|null, remarks: string[]}>}
 */
export async function fromUrl(location) {
  /** @type {string[]} */
  const remarks = [];
  const query = new URLSearchParams(location.search);
  const tab = tabIn(query, remarks);
  const plan = textsIn(SEARCHED, query, remarks);
  const view = textsIn(VIEW, query, remarks);
  const pinned = query.get("pin");
  query.delete("pin");
  const read = fieldsIn(query, remarks);
  const files = await filesIn(location.hash, remarks);
  const pin = pinned === null ? null
    : askOf(fieldsIn(new URLSearchParams(pinned), remarks), await filesIn(location.hash, remarks, PINNED), remarks);
  if (!Object.keys(read).length && !Object.keys(files).length) {
    return { ask: initial(), tab, plan, view, pin, remarks };
  }
  return { ask: askOf(read, files, remarks), tab, plan, view, pin, remarks };
}

/** Return a question of what was read. @param {Ask} read @param {Ask} files @param {string[]} remarks @returns {Ask} */
function askOf(read, files, remarks) {
  const { model, on, phase } = initial();
  const chosen = read.phase || phase;
  const ask = { model, on, phase: chosen, ...NEEDED[chosen], ...read, ...files };
  for (const field of Object.keys(ask)) {
    if (FIELDS[field] && !applies(field, ask.phase)) {
      remarks.push(`${field} in the link is not for ${ask.phase}, and was left out`);
      delete ask[field];
    }
  }
  return ask;
}

/** @param {URLSearchParams} query @param {string[]} remarks */
function tabIn(query, remarks) {
  const tab = query.get("tab");
  if (tab === null) return TABS[0];
  if (TABS.includes(tab)) return tab;
  remarks.push(`the link's tab ${shown(tab)} is none of ${TABS.join(", ")}`);
  return TABS[0];
}

/** @param {string[]} names @param {URLSearchParams} query @param {string[]} remarks */
function textsIn(names, query, remarks) {
  /** @type {Record<string, string>} */
  const texts = {};
  for (const name of names) {
    const text = query.get(name);
    if (text === null) continue;
    if (SHORT.test(text)) texts[name] = text;
    else remarks.push(`${name} in the link cannot be ${shown(text)}, and was left out`);
  }
  return texts;
}

/** @param {URLSearchParams} query @param {string[]} remarks */
function fieldsIn(query, remarks) {
  /** @type {Ask} */
  const read = {};
  for (const [field, text] of query) {
    if (field === "tab" || SEARCHED.includes(field) || VIEW.includes(field)) continue;
    if (!Object.hasOwn(FIELDS, field)) {
      remarks.push(`the link's ${shown(field)} is not known, and was left out`);
      continue;
    }
    const value = KINDS[FIELDS[field].kind](text);
    if (value === undefined) {
      remarks.push(`${field} in the link cannot be ${shown(text)}, and was left out`);
    } else {
      read[field] = value;
    }
  }
  return read;
}

/** @param {string} hash @param {string[]} remarks @param {string} [before] of the names */
async function filesIn(hash, remarks, before = "") {
  /** @type {Ask} */
  const files = {};
  for (const [key, packed] of new URLSearchParams(hash.replace(/^#/, ""))) {
    const name = key.slice(before.length);
    if (!key.startsWith(before) || !FILES.includes(name)) continue;
    try {
      const text = await unpack(packed);
      files[name] = name === "config" ? asObject(JSON.parse(text)) : text;
    } catch {
      remarks.push(`the ${name} in the link is damaged, and was left out`);
    }
  }
  return files;
}

/** @param {any} value */
function asObject(value) {
  if (typeof value !== "object" || value === null || Array.isArray(value)) throw new TypeError();
  return value;
}

/** @param {string} text */
function shown(text) {
  return `"${text.length > 40 ? `${text.slice(0, 40)}…` : text}"`;
}

/** @param {string} text */
async function pack(text) {
  const stream = new Blob([text]).stream().pipeThrough(new CompressionStream("deflate-raw"));
  const packed = new Uint8Array(await new Response(stream).arrayBuffer());
  let binary = "";
  for (const byte of packed) binary += String.fromCharCode(byte);
  return btoa(binary).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
}

/**
 * Return the text again. The stream is read piece by piece and given up beyond the limit: a short
 * link must not be able to unfold into gigabytes.
 * @param {string} packed
 */
async function unpack(packed) {
  if (packed.length > LINK_LIMIT) throw new RangeError("too long");
  const binary = atob(packed.replace(/-/g, "+").replace(/_/g, "/"));
  const bytes = Uint8Array.from(binary, (each) => each.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  const reader = stream.getReader();
  const decoder = new TextDecoder("utf-8", { fatal: true });
  let [text, size] = ["", 0];
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return text + decoder.decode();
    size += value.byteLength;
    if (size > FILE_LIMIT) {
      await reader.cancel();
      throw new RangeError("too large");
    }
    text += decoder.decode(value, { stream: true });
  }
}
