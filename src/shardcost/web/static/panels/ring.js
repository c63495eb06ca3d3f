// Algorithms: a collective step by step, and the bytes on the machine's links. The id is still "ring",
// which links and saved pages carry.

import { html } from "../charts.js";
import { choice, field, framed, machine, words } from "./parts.js";
import { ringCounts } from "./ring_counts.js";
import { player } from "./ring_player.js";
import { ringStage } from "./ring_stage.js";
import { topologyPicture } from "./ring_topology.js";
import { algorithmName, endInWords, startInWords, stepInWords } from "./ring_words.js";

export const id = "ring";
export const title = "Algorithms";

const FEWEST = 2;
const MOST = 16;
const BASIC = [{ name: "ring", collectives: ["all_reduce", "reduce_scatter", "all_gather"] }];
/** Until the catalog is there. */
const SPEEDS = [["0.5", "half"], ["1", "normal"], ["2", "double"], ["4", "fourfold"]];
const EXPLAINED = [
  "First a reduce-scatter: the buffer is cut into n chunks, and in n - 1 steps every chunk goes " +
    "round the ring while each rank adds its own part, until every rank holds one chunk of the " +
    "finished sum.",
  "Then an all-gather: in n - 1 more steps the finished chunks go round once more, and every rank " +
    "keeps a copy.",
  "So each link carries 2 (n - 1)/n of the buffer, hardly more for 400 ranks than for 4. Nothing " +
    "among ranks alone can do with less: every byte of the sum takes n - 1 transfers to add up " +
    "and n - 1 to reach the others, and the ring shares them out evenly. Its price is 2 (n - 1) " +
    "latencies.",
];
const BEGIN = { collective: "all_reduce", algorithm: "ring", size: "64MiB" };
const LEGEND =
  "Each box is a rank, each cell a chunk: orange as far as contributions have arrived, green when " +
  "complete. Solid arrows (+) are added by the receiver, dashed ones (=) are kept as they are.";

export function mount(root, page) {
  const { format } = page;
  const frame = framed(root);
  const counts = ringCounts(format);
  const place = { stage: html("div", {}), wires: html("div", {}) };
  let asked = null;
  let data = null;
  let touched = page.view("ring_n") !== undefined;
  let algorithms = BASIC;

  function again() {
    keep();
    load(null);
  }

  const collective = choice("ring-collective", "collective", collectives(), page.view("ring_collective") ?? BEGIN.collective, () => {
    fillAlgorithms();
    again();
  });
  const algorithm = choice("ring-algorithm", "algorithm", [BEGIN.algorithm], BEGIN.algorithm, again);
  const rankCount = { type: "number", min: FEWEST, max: MOST, step: 1 };
  const count = field("ring-n", "ranks n", page.view("ring_n") ?? "8", takeCount, rankCount);
  const size = field("ring-size", "buffer", page.view("ring_size") ?? BEGIN.size, again, { type: "text" });
  const speed = choice("ring-speed", "speed", SPEEDS, "1", () => {});
  const steps = player({
    draw,
    progress: (t) => stage.progress(t),
    pace: () => Number(speed.value),
  });
  const play = button("play", "▶ play", "play or pause (space)", steps.toggle);
  const back = button("back", "◀ back", "one step back (left arrow)", steps.back);
  const next = button("step", "step ▶", "one step on (right arrow)", steps.on);
  const reset = button("reset", "reset", "to the start (Home)", () => steps.go(0));
  const counter = html("span", { class: "panel-hint", id: "ring-counter" });
  const said = html("p", { class: "ring-words", id: "ring-words", "aria-live": "polite" });
  const explained = html(
    "div",
    {},
    html("h3", {}, "How a ring all-reduce works"),
    html("ol", { class: "ring-explained" }, EXPLAINED.map((each) => html("li", {}, each))),
  );
  const formula = html("p", { class: "panel-note", id: "ring-formula" });
  const wireWords = html("p", { class: "panel-note", id: "ring-topology-words" });
  play.classList.add("is-main");
  lay();
  const stage = ringStage(place.stage, page);
  const wires = topologyPicture(place.wires, page);
  root.addEventListener("keydown", onKey, true);

  function button(name, text, label, act) {
    const about = { type: "button", id: `ring-${name}`, title: label };
    return html("button", { ...about, on: { click: () => data && act() } }, text);
  }

  function lay() {
    const fields = [collective, algorithm, count, size, speed].map((each) => each.node);
    frame.body.append(
      html("div", { class: "panel-controls" }, fields),
      html(
        "div",
        { class: "ring-buttons", role: "group", "aria-label": "steps" },
        [back, play, next, reset, counter],
      ),
      said,
      html(
        "div",
        { class: "ring-stage" },
        html("div", {}, place.stage, html("p", { class: "panel-note" }, LEGEND)),
        html("div", { class: "ring-side" }, html("h3", {}, "On this machine"), place.wires, wireWords),
      ),
      counts.counters,
      html(
        "div",
        { class: "ring-under" },
        html("div", {}, explained, formula),
        html("div", {}, html("h3", {}, "Bytes from rank to rank so far"), counts.links, counts.rest),
      ),
    );
  }

  function onKey(event) {
    if (!data || event.ctrlKey || event.metaKey || event.altKey) return;
    const { tagName } = event.target;
    if (/^(INPUT|SELECT|TEXTAREA|SUMMARY|A)$/.test(tagName)) return;
    if (event.key === " " && tagName === "BUTTON") return;
    const acts = {
      " ": steps.toggle,
      ArrowRight: steps.on,
      ArrowLeft: steps.back,
      Home: () => steps.go(0),
      End: () => steps.go(data.steps.length),
    };
    if (!(event.key in acts)) return;
    event.preventDefault();
    event.stopPropagation();
    acts[event.key]();
  }

  function collectives() {
    return [...new Set(algorithms.flatMap((each) => each.collectives))];
  }

  function fillAlgorithms(wanted = algorithm.value) {
    const own = algorithms.filter((each) => each.collectives.includes(collective.value));
    algorithm.set(own.map((each) => [each.name, algorithmName(each.name)]), wanted);
  }

  /** Take the catalog's list, which may come after the panel. */
  function readCatalog() {
    const listed = page.catalog?.algorithms;
    if (!listed?.length || listed === algorithms) return;
    algorithms = listed;
    collective.set(collectives(), page.view("ring_collective") || collective.value);
    fillAlgorithms(page.view("ring_algorithm") || algorithm.value);
  }

  /** Keep in the address what is not as it begins. */
  function keep() {
    const said = { collective: collective.value, algorithm: algorithm.value, size: size.value.trim() };
    const kept = Object.entries(said).map(([name, text]) => [`ring_${name}`, text === BEGIN[name] ? "" : text]);
    page.setView({ ...Object.fromEntries(kept), ring_n: touched ? count.value : "" });
  }

  function takeCount(text) {
    touched = true;
    count.input.value = Math.max(FEWEST, Math.min(MOST, Math.round(Number(text)) || FEWEST));
    again();
  }

  /** Return the schedule, and why it is of no machine if it is not. */
  async function answered(signal) {
    const body = {
      collective: collective.value,
      algorithm: algorithm.value,
      ranks: Number(count.value),
      size: size.value.trim(),
    };
    const short = tooFew(body.ranks);
    if (short) return [await page.post("api/schedule", body, signal), short];
    try {
      return [await page.post("api/schedule", { ...body, ...machine(asked) }, signal), ""];
    } catch (problem) {
      if (problem?.status !== 422) throw problem;
      // What this machine refuses is still an algorithm that can be looked at.
      return [await page.post("api/schedule", body, signal), problem.message];
    }
  }

  /** Return why a machine without a network has no room for so many ranks; "" if it has. */
  function tooFew(ranks) {
    const known = asked.network ? null : page.catalog?.clusters?.find((each) => each.name === asked.on);
    const room = known?.domain_gpus ?? Infinity;
    return ranks > room ? `${asked.on} joins ${room} GPUs; name a network for more` : "";
  }

  function load(signal) {
    if (!asked) return Promise.resolve();
    steps.stop();
    return frame.run(async (own) => {
      const [found, refused] = await answered(own);
      if (own.aborted) return;
      data = found;
      drawWires(refused);
      explained.hidden = data.collective !== BEGIN.collective || data.algorithm !== BEGIN.algorithm;
      formula.textContent =
        `${algorithmName(data.algorithm)}: ${data.title}. ${data.formula}. Here: ${data.numbers}.` +
        (data.paper ? ` ${data.paper}.` : "");
      steps.load(data.steps.length);
    }, signal);
  }

  function drawWires(refused) {
    const known = data.topology;
    place.wires.hidden = !known;
    if (known) wires.show(known);
    wireWords.textContent = known
      ? `${known.name}: the busiest link is ${data.totals.busiest}. Links are as wide as the ` +
        "share of the time that they are used."
      : `Not drawn: ${refused || "no machine was named"}.`;
  }

  function draw() {
    const { at, moving, playing } = steps.state;
    const total = data.steps.length;
    stage.show(data, at, moving);
    stage.label(
      `${algorithmName(data.algorithm)} ${words(data.collective)} among ${data.ranks} ranks, ` +
        `after ${at} of ${total} steps.`,
      "Space plays and pauses, arrow keys step.",
    );
    said.textContent = sentence(at, moving);
    counter.textContent = `${at} of ${total} steps done`;
    play.textContent = playing ? "❚❚ pause" : "▶ play";
    play.title = playing ? "pause (space)" : "play (space)";
    back.disabled = at === 0 && !moving;
    next.disabled = at >= total;
    counts.show(data, at);
  }

  function sentence(at, moving) {
    if (moving) return stepInWords(data, at, format);
    if (at === 0) return startInWords(data, format);
    const done = stepInWords(data, at - 1, format);
    return at === data.steps.length ? `${done} ${endInWords(data)}` : done;
  }

  return {
    update(ask, _estimate, signal) {
      const before = asked && JSON.stringify(machine(asked));
      asked = ask;
      readCatalog();
      const degree = Number(ask.tp) || 1;
      const follows = !touched && degree >= FEWEST && degree <= MOST && Number(count.value) !== degree;
      if (follows) count.input.value = degree;
      // What is being looked at stays where it is unless the machine or the count is another.
      if (data && !follows && before === JSON.stringify(machine(ask))) return Promise.resolve();
      return load(signal);
    },
    rows() {
      const head = ["step", "source", "target", "chunks", "bytes", "reduces"];
      const row = (step, index) =>
        step.transfers.map((each) => [
          index + 1,
          each.source,
          each.target,
          each.chunks.join(" "),
          each.bytes,
          each.reduces,
        ]);
      return data ? [head, ...data.steps.flatMap(row)] : [];
    },
  };
}
