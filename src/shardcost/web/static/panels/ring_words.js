// A step of a collective in words, from what its transfers are; nothing here is per algorithm.

import { words } from "./parts.js";

/** Return what happens in step `index`, counted from 0. */
export function stepInWords(data, index, format) {
  const { transfers, phase } = data.steps[index];
  const n = data.ranks;
  const head = `Step ${index + 1} of ${data.steps.length}: `;
  if (!transfers.length) return `${head}nothing is sent.`;
  const parts = [
    clause(transfers.filter((each) => each.source < n && each.target < n), n, format),
    switchClause(transfers.filter((each) => each.target >= n), "up", n, format),
    switchClause(transfers.filter((each) => each.source >= n), "down", n, format),
  ].filter(Boolean);
  return `${head}${parts.join("; ")}${phase ? `: ${phase}` : ""}.`;
}

/** Return how things stand before the first step. */
export function startInWords(data, format) {
  const size = format.bytes(data.size_bytes);
  const cut = `${data.chunks} chunks`;
  const held = {
    all_reduce: `every rank holds its own ${size}, cut into ${cut}; at the end every rank holds the sum`,
    reduce_scatter:
      `every rank holds its own ${size}, cut into ${cut}; ` +
      "at the end each holds its block of the sum",
    all_gather: `every rank holds its own block; at the end every rank holds all of the ${size}`,
    all_to_all: "every rank holds one chunk for every other; at the end each holds those meant for it",
    broadcast: `rank 0 holds ${size}; at the end every rank holds it`,
    reduce: `every rank holds its own ${size}; at the end rank 0 holds the sum`,
    send_recv: `every rank holds its own ${size}; at the end each holds its left neighbour's`,
  };
  return `Before the first step: ${held[data.collective] ?? "nothing is sent yet"}.`;
}

/** Return that it is over. */
export function endInWords(data) {
  const said = {
    all_reduce: "every rank holds the sum of all",
    reduce_scatter: "each rank holds its block of the sum",
    all_gather: "every rank holds all blocks",
    all_to_all: "each rank holds what was meant for it",
    broadcast: "every rank holds the buffer",
    reduce: "rank 0 holds the sum of all",
    send_recv: "each rank holds its left neighbour's buffer",
  };
  return `Done: ${said[data.collective] ?? "nothing more is sent"}.`;
}

function clause(transfers, n, format) {
  if (!transfers.length) return "";
  const senders = new Set(transfers.map((each) => each.source)).size;
  const some = senders === 1 ? `rank ${transfers[0].source}` : `${senders} of ${n} ranks`;
  const who = senders === n ? "each rank" : some;
  const verb = senders === n || senders === 1 ? "sends" : "send";
  const adds = transfers.filter((each) => each.reduces).length;
  const partner = exchanged(transfers);
  if (partner && senders > 1) {
    const added = transfers.every((each) => each.reduces);
    const whole = senders === n;
    return (
      `${who} ${whole ? "exchanges" : "exchange"} ${load(transfers, format)} with ` +
      `${whole ? "its partner" : "partners"} ${partner} away and ` +
      `${added ? "add" : "keep"}${whole ? "s what it gets" : " what they get"}`
    );
  }
  const several = new Set(transfers.map((each) => `${each.source}>${each.target}`)).size > senders;
  const effect =
    adds === transfers.length
      ? several ? "who add it to their own" : "which adds it to its own"
      : adds === 0
        ? several ? "who keep a copy" : "which keeps a copy"
        : "of which some add it to their own and some keep a copy";
  return `${who} ${verb} ${load(transfers, format)} to ${whom(transfers, n, senders)}, ${effect}`;
}

function switchClause(transfers, way, n, format) {
  if (!transfers.length) return "";
  const ends = new Set(transfers.map((each) => (way === "up" ? each.source : each.target))).size;
  const some = ends === 1 ? "one rank" : `${ends} ranks`;
  const who = ends === n ? `${way === "up" ? "each" : "every"} rank` : some;
  if (way === "up") {
    const verb = ends === n || ends === 1 ? "sends" : "send";
    const adds = transfers.some((each) => each.reduces);
    return `${who} ${verb} ${load(transfers, format)} to the switch${adds ? ", which adds them up" : ""}`;
  }
  return `the switch sends ${load(transfers, format)} to ${who}`;
}

/** Return how much one transfer carries. */
function load(transfers, format) {
  const counts = transfers.map((each) => each.chunks.length);
  const most = Math.max(...counts);
  const size = format.bytes(Math.max(...transfers.map((each) => each.bytes)));
  if (most === 1) return `one chunk (${size})`;
  return `${counts.every((each) => each === most) ? "" : "up to "}${most} chunks (${size})`;
}

function whom(transfers, n, senders) {
  const shift = (each) => (each.target - each.source + n) % n;
  if (transfers.length === 1) return `rank ${transfers[0].target}`;
  const shifts = [...new Set(transfers.map(shift))];
  if (n > 2 && shifts.every((each) => each === 1 || each === n - 1)) {
    return shifts.length > 1 ? "both neighbours" : `its ${shifts[0] === 1 ? "right" : "left"} neighbour`;
  }
  if (transfers.length === senders * (n - 1) && n > 2) return "every other";
  if (shifts.length === 1) return `the rank ${shifts[0]} places to the right`;
  return senders === transfers.length ? "one other rank" : "others";
}

/** Return how far partners are from each other where all transfers are exchanges by two; else 0. */
function exchanged(transfers) {
  const back = new Set(transfers.map((each) => `${each.target}>${each.source}`));
  const far = Math.abs(transfers[0].target - transfers[0].source);
  const one = new Set(transfers.map((each) => each.source)).size === transfers.length;
  const alike = transfers.every(
    (each) => back.has(`${each.source}>${each.target}`) && Math.abs(each.target - each.source) === far,
  );
  return one && alike ? far : 0;
}

/** Return what an algorithm is called. */
export function algorithmName(name) {
  return name === "nvls" || name === "sharp" ? name.toUpperCase() : words(name);
}
