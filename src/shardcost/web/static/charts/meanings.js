// What colours mean, everywhere the same.

const GROUPS = { tp: "c2", dp: "c5", pp: "c4", cp: "c3", ep: "c3" };
const KINDS = {
  gemm: "c1",
  attention: "c6",
  elementwise: "c7",
  optimizer: "c7",
  update: "c7",
  forward: "c1",
  backward: "c1",
  weight: "c1",
  recompute: "c1",
  host: "muted",
  idle: "muted",
  bubble: "muted",
};

/** Return the name of the colour of a group's communication. */
export function colourOfGroup(group) {
  return GROUPS[String(group ?? "").split(/[\s_-]/)[0]] ?? "c2";
}

/** Return the name of the colour of a kind of operation, or of a group's communication. */
export function colourOfKind(kind, group = null) {
  if (kind === "comm" || kind === "send" || kind === "communication") return colourOfGroup(group);
  return KINDS[kind] ?? "muted";
}
