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
const NAMED = 3; // of operations that send one message
const BASIC = [{ name: "ring", collectives: ["all_reduce", "reduce_scatter", "all_gather"] }];
/** Until the catalog is there. */
const FIELDS = ["collective", "algorithm", "n", "size"];
const SPEEDS = [["0.5", "half"], ["1", "normal"], ["2", "double"], ["4", "fourfold"]];
const BEGIN = { collective: "all_reduce", algorithm: "ring", n: "8", size: "64MiB" };
/** Where the layout sends nothing that could be looked at. */
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
  let algorithms = BASIC;
  let messages = [];
  let layers = 0;
  let nodes = null;
  /** That the layout's own message goes over; of one that somebody chose, as few as hold its ranks. */
  /** Whether the layout's own message is looked at, rather than one that somebody chose. */
  let follows = !FIELDS.some((name) => page.view(`ring_${name}`));

  function again() {
    follows = false;
    nodes = null;
    keep();
    load(null);
  }

  const collective = choice("ring-collective", "collective", collectives(), page.view("ring_collective") || BEGIN.collective, () => {
    fillAlgorithms();
    again();
  });
  const algorithm = choice("ring-algorithm", "algorithm", [BEGIN.algorithm], BEGIN.algorithm, again);
  const rankCount = { type: "number", min: FEWEST, max: MOST, step: 1 };
  const count = field("ring-n", "ranks n", page.view("ring_n") || BEGIN.n, takeCount, rankCount);
  const size = field("ring-size", "buffer", page.view("ring_size") || BEGIN.size, again, { type: "text" });
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
  const own = html("p", { class: "panel-line", id: "ring-own" });
  const cost = html("div", { class: "ring-cost", id: "ring-cost" });
  const howTitle = html("h3", {}, "How it works");
  const how = html("ol", { class: "ring-explained", id: "ring-how" });
  const explained = html("div", {}, howTitle, how);
  const paper = html("p", { class: "panel-note", id: "ring-paper" });
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
      own,
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
        html("div", {}, cost, explained, paper),
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

  /** Take what the address says, which another tab may have written; return whether that is new. */
  function readView() {
    const fields = { collective: collective.select, algorithm: algorithm.select, n: count.input, size: size.input };
    const said = FIELDS.map((name) => [name, page.view(`ring_${name}`)]).filter(([, text]) => text);
    if (!said.length) return false;
    follows = false;
    const before = FIELDS.map((name) => fields[name].value).join();
    for (const [name, text] of said) {
      fields[name].value = text;
      if (name === "collective") fillAlgorithms();
    }
    return before !== FIELDS.map((name) => fields[name].value).join();
  }

  /** Keep in the address what was chosen; the layout's own message needs no words. */
  function keep() {
    const said = { collective: collective.value, algorithm: algorithm.value, n: count.value, size: size.value.trim() };
    page.setView(Object.fromEntries(FIELDS.map((name) => [`ring_${name}`, follows ? "" : said[name]])));
  }

  function takeCount(text) {
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
      ...(nodes > 1 ? { nodes } : {}),
    };
    const short = tooFew(body.ranks);
    const anywhere = { ...body, nodes: undefined };
    if (short) return [await page.post("api/schedule", anywhere, signal), short];
    try {
      return [await page.post("api/schedule", { ...body, ...machine(asked) }, signal), ""];
    } catch (problem) {
      if (problem?.status !== 422) throw problem;
      // What this machine refuses is still an algorithm that can be looked at.
      return [await page.post("api/schedule", anywhere, signal), problem.message];
    }
  }

  /** Return why a machine without a network has no room for so many ranks; "" if it has. */
  function tooFew(ranks) {
    const known = asked.network ? null : page.catalog?.clusters?.find((each) => each.name === asked.on);
    const room = known?.domain_gpus ?? Infinity;
    return ranks > room ? `${asked.on} joins ${room} GPUs; name a network for more` : "";
  }

  function load(signal) {
    return asked ? frame.run(show, signal) : Promise.resolve();
  }

  async function show(own) {
    steps.stop();
    const [found, refused] = await answered(own);
    if (own.aborted) return;
    data = found;
    drawWires(refused);
    fillOwn();
    fillCost();
    howTitle.textContent = `How ${algorithmName(data.algorithm)} ${words(data.collective)} works`;
    how.replaceChildren(...data.how.map((each) => html("li", {}, each)));
    paper.textContent = data.paper ? `${data.paper}.` : "";
    steps.load(data.steps.length);
  }

  /** Say how often this layout does what is looked at, and how to get there. */
  function fillOwn() {
    const same = (each) =>
      each.collective === data.collective && each.ranks === data.ranks && Math.abs(each.size_bytes - data.size_bytes) < 1;
    const alike = messages.filter(same);
    if (alike.length) {
      const often = alike.reduce((sum, each) => sum + each.count, 0);
      const inLayers = alike.filter((each) => each.count % layers === 0).reduce((sum, each) => sum + each.count, 0);
      const perLayer = asked.phase !== "train" && (asked.pp ?? 1) === 1 ? inLayers / layers : 0;
      const rate = perLayer > 0
        ? `${perLayer} of these per layer, ${format.whole(often)} per step`
        : `${format.digits(often)} of these per step`;
      const names = alike.slice(0, NAMED).map((each) => each.name).join(", ");
      const more = alike.length > NAMED ? ` and ${alike.length - NAMED} more` : "";
      const first = alike[0];
      const path = `${algorithmName(first.algorithm)} ${first.protocol === "none" ? "" : first.protocol}`.trim();
      own.replaceChildren(
        `This layout does ${rate}, each ${format.time(first.time_s)} by ${first.library} ${path}: ${names}${more}.`,
      );
      return;
    }
    const most = ownMessage();
    own.replaceChildren(
      most ? "This layout does not send this message. " : "This layout has no collective among 2 to 16 ranks. ",
      most
        ? html("button", { type: "button", class: "small", id: "ring-use-own", on: { click: useOwn } },
          `Show its ${words(most.collective)} of ${format.bytes(most.size_bytes)}`)
        : "",
    );
  }

  /** The formula, with the values of this machine, and what its library is predicted to take. */
  function fillCost() {
    const { model, predicted } = data;
    const rows = [["time by the formula", data.formula.replace(/^time = /, "")]];
    if (model) {
      rows.push(["alpha, of a hop", `${format.time(model.alpha_s)}, from the constants of ${predicted.library}`]);
      rows.push(["B, of the busiest link", `${format.bandwidth(model.bytes_per_s)}, nominal`]);
    }
    rows.push([model ? "on this machine" : "with its numbers", data.numbers.replace(/^time = /, "")]);
    if (predicted) {
      const path = `${algorithmName(predicted.algorithm)} ${predicted.protocol}`;
      const ends = `${format.time(predicted.low_s)} to ${format.time(predicted.high_s)}`;
      rows.push([
        `predicted, ${predicted.library}`,
        html("span", {}, html("b", {}, format.time(predicted.time_s)), ` (${ends}) by ${path}, called by itself `,
          html("button", { type: "button", class: "small", id: "ring-to-collective", on: { click: toCollective } },
            "Curve in Collective")),
      ]);
    }
    if (model && predicted && predicted.time_s < model.time_s) {
      rows.push(["why that is less", "the formula is of one such algorithm by itself; the library may use several links, " +
        "or another algorithm"]);
    }
    cost.replaceChildren(
      html("h3", {}, "What it costs"),
      html("dl", {}, rows.flatMap(([name, text]) => [html("dt", {}, name), html("dd", {}, text)])),
    );
  }

  /** Show the curve over sizes of what is looked at. */
  function toCollective() {
    page.setView({
      collective_group: "free", collective_name: data.collective, collective_gpus: String(data.ranks),
      collective_nodes: "", collective_library: data.predicted.library, collective_mode: data.predicted.mode,
    });
    document.getElementById("tab-collective")?.click();
  }

  /** Return the message of this layout that takes most time, among those that can be looked at. */
  function ownMessage() {
    const known = new Set(collectives().filter((name) => name !== "send_recv"));
    return messages.find((each) =>
      known.has(each.collective) && each.ranks >= FEWEST && each.ranks <= MOST && each.size_bytes >= 1);
  }

  function useOwn() {
    follows = true;
    keep();
    takeOwn();
    load(null);
  }

  /** Fill the fields from the layout's own message; return whether that changes anything. */
  function takeOwn() {
    const most = ownMessage();
    const wanted = most
      ? { collective: most.collective, n: String(most.ranks), size: sizeOf(most.size_bytes) }
      : BEGIN;
    const now = () => [collective.value, count.value, size.value, nodes].join();
    const before = now();
    nodes = most?.nodes ?? null;
    collective.set(collectives(), wanted.collective);
    fillAlgorithms();
    count.input.value = wanted.n;
    size.input.value = wanted.size;
    return before !== now();
  }

  function drawWires(refused) {
    const known = data.topology;
    place.wires.hidden = !known;
    if (known) wires.show(known, new Map());
    wireWords.textContent = known
      ? `${known.name}: over the whole operation the busiest link, ${data.totals.busiest}, is in use ` +
        `${format.percent(data.totals.utilisation)} of the time. The width of a link shows how much it ` +
        "has carried so far."
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
    if (data.topology) wires.show(data.topology, carried(data, at));
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
      return frame.run(async (control) => {
        const found = await page.post("api/messages", ask, control);
        if (control.aborted) return;
        ({ messages, layers } = found);
        const other = readView() | (follows && takeOwn());
        // What is being looked at stays where it is unless the machine or the message is another.
        if (data && !other && before === JSON.stringify(machine(ask))) fillOwn();
        else await show(control);
      }, signal);
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

/** Return bytes as they are typed. */
function sizeOf(bytes) {
  const whole = Math.round(bytes);
  for (const [unit, name] of [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
    if (whole % unit === 0) return `${whole / unit}${name}`;
  }
  return String(whole);
}

/** Return what each link of the machine has carried after so many steps, as a share of all it carries. */
function carried(data, at) {
  const routes = new Map(data.links.map((each) => [`${each.source}>${each.target}`, each.route ?? []]));
  const bytes = new Map();
  for (const step of data.steps.slice(0, at)) {
    for (const each of step.transfers) {
      for (const link of routes.get(`${each.source}>${each.target}`) ?? []) {
        bytes.set(link, (bytes.get(link) ?? 0) + each.bytes);
      }
    }
  }
  return new Map([...bytes].map(([link, sent]) => [link, sent / data.topology.links[link].bytes]));
}
