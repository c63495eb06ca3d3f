// @ts-check
// Numbers as people read them: the same text as shardcost.units and the reports write, digit for
// digit, so that a figure on the page is found again in a terminal. Nothing is computed here.

import { LAYOUT, OPTIONS } from "./state.js";

/**
 * Return a value with a fixed count of decimals, ties to even as Python rounds them.
 * @param {number} value
 * @param {number} decimals
 * @returns {string}
 */
export function fixed(value, decimals) {
  const size = Math.abs(value);
  if (!Number.isFinite(value) || size >= 1e21) return String(value);
  const text = size.toFixed(decimals);
  // toFixed is exact but rounds ties up; the exact expansion tells whether this was one.
  const exact = size.toFixed(Math.min(100, decimals + 60));
  const cut = decimals ? exact.indexOf(".") + 1 + decimals : exact.indexOf(".");
  const rest = exact.slice(decimals ? cut : cut + 1);
  const kept = exact.slice(0, cut);
  const tie = /^50*$/.test(rest) && /[02468]$/.test(kept);
  return (value < 0 ? "-" : "") + (tie ? kept : text);
}

/**
 * Return a value with so many significant digits, as Python's ``g`` writes it.
 * @param {number} value
 * @param {number} digits
 * @returns {string}
 */
export function significant(value, digits) {
  if (value === 0 || !Number.isFinite(value)) return String(value);
  const [mantissa, power] = value.toExponential(digits - 1).split("e");
  const exponent = Number(power);
  if (exponent >= -4 && exponent < digits) return trimmed(fixed(value, digits - 1 - exponent));
  const sign = exponent < 0 ? "-" : "+";
  return `${trimmed(mantissa)}e${sign}${String(Math.abs(exponent)).padStart(2, "0")}`;
}

/** @param {string} text */
function trimmed(text) {
  return text.includes(".") ? text.replace(/0+$/, "").replace(/\.$/, "") : text;
}

/** @param {string} text a number without an exponent */
function grouped(text) {
  const [whole, rest] = text.split(".");
  const spaced = whole.replace(/\B(?=(\d{3})+(?!\d))/g, ",");
  return rest === undefined ? spaced : `${spaced}.${rest}`;
}

/** @param {number} value at most four significant digits, without an exponent or trailing zeros */
export function digits(value) {
  if (Math.abs(value) >= 1000) return grouped(fixed(value, 0));
  const text = significant(value, 4);
  return text.includes("e") ? trimmed(fixed(value, 4)) : text;
}

/**
 * @param {number} value
 * @param {number} step
 * @param {string[]} units
 */
function scaled(value, step, units) {
  let [size, at] = [Number(value), 0];
  while (at < units.length - 1 && Number(Math.abs(size).toPrecision(4)) >= step) {
    size /= step;
    at += 1;
  }
  return `${digits(size)} ${units[at]}`;
}

/** @param {number} value */
export const bytes = (value) =>
  scaled(value, 1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"]);
/** @param {number} value */
export const bytesDecimal = (value) =>
  scaled(value, 1000, ["B", "kB", "MB", "GB", "TB", "PB", "EB"]);
/** @param {number} value */
export const bandwidth = (value) =>
  scaled(value, 1000, ["B/s", "kB/s", "MB/s", "GB/s", "TB/s", "PB/s"]);
/** @param {number} value */
export const flops = (value) =>
  scaled(value, 1000, [
    "FLOP/s", "kFLOP/s", "MFLOP/s", "GFLOP/s", "TFLOP/s", "PFLOP/s", "EFLOP/s",
  ]);
/** @param {number} value */
export const count = (value) => scaled(value, 1000, ["", "K", "M", "B", "T"]).replace(" ", "");

/** @param {number} seconds */
export function time(seconds) {
  const value = Number(seconds);
  if (value === 0 || value >= 1) return `${digits(value)} s`;
  return scaled(value * 1e9, 1000, ["ns", "us", "ms", "s"]);
}

/** @param {number} tokens per second, with the digits that count */
export const rate = (tokens) =>
  tokens >= 100 ? grouped(fixed(tokens, 0)) : significant(tokens, 3);

/** @param {number} share */
export const percent = (share) => `${fixed(100 * share, 1)} %`;

/** @param {number} whole */
export const whole = (whole) => grouped(fixed(whole, 0));

/** @param {number} joules */
export function energy(joules) {
  let value = joules;
  for (const unit of ["J", "kJ", "MJ"]) {
    if (value < 1000) return `${significant(value, 3)} ${unit}`;
    value /= 1000;
  }
  return `${significant(value, 4)} GJ`;
}

/**
 * Return from when to when, three digits each, the unit once where it is the same.
 * @param {number} low
 * @param {number} high
 * @param {(value: number) => string} [form]
 */
export function ends(low, high, form = time) {
  const [from, to] = [low, high].map((each) => form(Number(significant(each, 3))));
  const unit = to.includes(" ") ? to.slice(to.indexOf(" ")) : "";
  return `${unit && from.endsWith(unit) ? from.slice(0, -unit.length) : from} to ${to}`;
}

const DEGREES = ["tp", "cp", "ep", "pp", "dp", "virtual_stages"];
const SHORT = /** @type {Record<string, string>} */ ({ virtual_stages: "vp" });

/**
 * Return the degrees above 1 of a layout in the field's compact form: tp8pp4.
 * @param {Record<string, any>} layout
 */
export function layoutShort(layout) {
  const said = DEGREES.filter((name) => layout[name] > 1).map((name) => `${SHORT[name] ?? name}${layout[name]}`);
  return said.join("") || "tp1";
}

/**
 * Return what of a layout is not the default, beside its degrees.
 * @param {Record<string, any>} layout
 */
export function layoutExtras(layout) {
  return LAYOUT.map((name) => OPTIONS[name])
    .filter(({ name, said, default: usual }) => said && ![undefined, null, usual].includes(layout[name]))
    .map(({ name, said }) => said.replace("{}", words(String(layout[name])))).join(", ");
}

const JOINED = /all_reduce|all_gather|reduce_scatter|all_to_all|one_shot|two_shot/g;

/** Return names as people write them. @param {string} name */
export const words = (name) =>
  name.replace(JOINED, (found) => found.replace(/_/g, "-")).replace("send_recv", "send/recv").replace(/_/g, " ");

/** @type {Record<string, string>} */
const NAMES = {
  gemm: "GEMM", kv_cache: "KV cache", "waiting for the slowest rank": "slowest rank",
};

/** Return a part of the time or a kind of memory as reports call it. @param {string} key */
export const partName = (key) => NAMES[key]
  ?? words(key).replace(/^\w+(?= communication$)/, (group) => group.toUpperCase());

const SYMBOLS = /^(tp|cp|pp|dp|ep|nccl|rccl|oneccl|vllm|sglang|trtllm|xla)\b|^[a-z]+[_0-9]/;
const SPACE_OF_UNIT = /(\d) (?=(?:%|[num]?s|[KMGT]?i?B)(?![\w/]))/g;

/** Return a line as a sentence; symbols keep their small letters, units their number. @param {string} line */
export const sentence = (line) => {
  const whole = line.replace(SPACE_OF_UNIT, "$1\u00a0");
  if (SYMBOLS.test(whole)) return whole;
  return (whole.charAt(0).toUpperCase() + whole.slice(1)).replace(/^Gpus\b/, "GPUs");
};

/** Return a line of the command line without the dashes of its options. @param {string} line */
export const unflagged = (line) =>
  line.replace(/(^|[\s(])--([a-z]+(?:-[a-z]+)*)/g, (_, before, name) =>
    before + name.replace(/-/g, " "));

/** Return an error of the command line as the page says it. @param {string} line */
export const told = (line) => sentence(unflagged(line));
