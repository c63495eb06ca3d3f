// Ring: a collective step by step, until it is understood; and what it does to the machine's links.

import { html } from "../charts.js";
import { choice, field, framed, machine, words } from "./parts.js";
import { ringStage } from "./ring_stage.js";
import { topologyPicture } from "./ring_topology.js";
import { algorithmName, endInWords, leastBytes, leastInWords, startInWords, stepInWords } from "./ring_words.js";

export const id = "ring";
export const title = "Ring";

const STEP_MS = 1100;
const REST_MS = 350;
const LISTED = 48;
const BASIC = [{ name: "ring", collectives: ["all_reduce", "reduce_scatter", "all_gather"] }];
const EXPLAINED = [
  "First a reduce-scatter: the buffer is cut into n chunks, and in n - 1 steps every chunk goes " +
    "once round the ring while each rank adds its own part, until every rank holds one chunk of the finished sum.",
  "Then an all-gather: in n - 1 more steps the finished chunks go round once more, and every rank keeps a copy.",
  "So each link carries 2 (n - 1)/n of the buffer, hardly more for 400 ranks than for 4. Nothing " +
    "among ranks alone can do with less: every byte of the sum takes n - 1 transfers to add up and " +
    "n - 1 to reach the others, and the ring shares them out evenly. Its price is 2 (n - 1) latencies.",
];

export function mount(root, page) {
  const { format } = page;
  const frame = framed(root);
  const still = matchMedia("(prefers-reduced-motion: reduce)");
  const algorithms = page.catalog?.algorithms?.length ? page.catalog.algorithms : BASIC;
  const collectives = [...new Set(algorithms.flatMap((each) => each.collectives))];
  let asked = null;
  let data = null;
  let at = 0;
  let playing = false;
  let moving = false;
  let timer = 0;
  let touched = false;

  const collective = choice("ring-collective", "collective", collectives, "all_reduce", () => {
    fillAlgorithms();
    load(null);
  });
  const algorithm = choice("ring-algorithm", "algorithm", ["ring"], "ring", () => load(null));
  const count = field("ring-n", "ranks n", "8", () => { touched = true; load(null); }, { type: "number", min: 2, max: 16, step: 1 });
  const size = field("ring-size", "buffer", "64MiB", () => load(null), { type: "text" });
  const speed = choice("ring-speed", "speed", [["0.5", "half"], ["1", "normal"], ["2", "double"], ["4", "fourfold"]], "1", () => {});
  const button = (name, text, label, act, main = false) =>
    html("button", { type: "button", id: `ring-${name}`, class: main ? "is-main" : null, "aria-label": label, title: label, on: { click: act } }, text);
  const play = button("play", "▶ play", "play or pause (space)", toggle, true);
  const back = button("back", "◀ back", "one step back (left arrow)", stepBack);
  const next = button("step", "step ▶", "one step on (right arrow)", stepOn);
  const reset = button("reset", "reset", "to the start (Home)", () => go(0));
  const counter = html("span", { class: "panel-hint", id: "ring-counter" });
  const said = html("p", { class: "ring-words", id: "ring-words", "aria-live": "polite" });
  const counters = html("div", { class: "ring-counters", id: "ring-counters" });
  const links = html("ol", { class: "ring-links", id: "ring-links", tabindex: "0", "aria-label": "bytes sent from rank to rank so far" });
  const rest = html("span", { class: "panel-hint" });
  const formula = html("p", { class: "panel-note", id: "ring-formula" });
  const stagePlace = html("div", { class: "ring-picture" });
  const wirePlace = html("div", {});
  const wireWords = html("p", { class: "panel-note", id: "ring-topology-words" });
  const legend = html("p", { class: "panel-note" },
    "Each box is a rank, each cell a chunk: orange as far as contributions have arrived, green when complete. " +
      "Solid arrows (+) are added by the receiver, dashed ones (=) are kept as they are.");
  fillAlgorithms();

  frame.body.append(
    html("div", { class: "panel-controls" }, collective.node, algorithm.node, count.node, size.node, speed.node),
    html("div", { class: "ring-buttons", role: "group", "aria-label": "steps" }, back, play, next, reset, counter),
    said,
    html(
      "div",
      { class: "ring-stage" },
      html("div", {}, stagePlace, legend),
      html("div", { class: "ring-side" }, html("h3", {}, "On this machine"), wirePlace, wireWords),
    ),
    counters,
    html(
      "div",
      { class: "ring-under" },
      html("div", {}, html("h3", {}, "Ring all-reduce in three sentences"), html("ol", { class: "ring-explained" }, EXPLAINED.map((each) => html("li", {}, each))), formula),
      html("div", {}, html("h3", {}, "Bytes from rank to rank so far"), links, rest),
    ),
  );
  const stage = ringStage(stagePlace, page);
  const wires = topologyPicture(wirePlace, page);

  root.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const inField = /^(INPUT|SELECT|TEXTAREA|SUMMARY|A)$/.test(event.target.tagName);
    if (inField || (event.key === " " && event.target.tagName === "BUTTON")) return;
    const acts = { " ": toggle, ArrowRight: stepOn, ArrowLeft: stepBack, Home: () => go(0), End: () => go(data?.steps.length ?? 0) };
    if (!(event.key in acts)) return;
    event.preventDefault();
    event.stopPropagation();
    acts[event.key]();
  }, true);

  function fillAlgorithms() {
    const own = algorithms.filter((each) => each.collectives.includes(collective.value));
    algorithm.set(own.map((each) => [each.name, algorithmName(each.name)]), algorithm.value);
  }

  async function ask(signal) {
    const body = { collective: collective.value, algorithm: algorithm.value, ranks: Number(count.value), size: size.value.trim() };
    const short = tooFew(body.ranks);
    if (short) return [await page.post("api/schedule", body, signal), short];
    try {
      return [await page.post("api/schedule", { ...body, ...machine(asked) }, signal), ""];
    } catch (problem) {
      if (problem?.name === "AbortError" || problem?.status !== 422) throw problem;
      // What this machine refuses is still an algorithm that can be looked at.
      const alone = await page.post("api/schedule", body, signal);
      return [alone, problem.message];
    }
  }

  /** Return why a machine without a network has no room for so many ranks; "" if it has. */
  function tooFew(ranks) {
    const found = asked.network ? null : page.catalog?.clusters?.find((each) => each.name === asked.on);
    const room = found?.domain_gpus ?? found?.gpus_per_node ?? Infinity;
    return ranks > room ? `${asked.on} joins ${room} GPUs; name a network for more` : "";
  }

  function load(signal) {
    if (!asked) return Promise.resolve();
    stop();
    return frame.run(async (own) => {
      const [found, refused] = await ask(own);
      if (own.aborted) return;
      data = found;
      at = 0;
      drawWires(refused);
      formula.textContent = [
        data.title ? `${algorithmName(data.algorithm)}: ${data.title}.` : "",
        data.formula ? `${data.formula}.` : "",
        data.numbers ? `Here: ${data.numbers}.` : "",
        data.paper ? `${data.paper}.` : "",
      ].filter(Boolean).join(" ");
      draw();
    }, signal);
  }

  function drawWires(refused) {
    const known = data.topology;
    wirePlace.hidden = !known;
    if (known) wires.show(known);
    const { totals } = data;
    wireWords.textContent = known
      ? `${known.name}: the busiest link is ${totals.busiest}. Links are as wide as the share of the time that they are used.`
      : refused
        ? `Not drawn: ${refused}.`
        : "Not drawn: no machine was named.";
  }

  function draw() {
    const total = data.steps.length;
    stage.show(data, at, moving);
    stage.label(
      `${algorithmName(data.algorithm)} ${words(data.collective)} among ${data.ranks} ranks, after ${at} of ${total} steps.`,
      "Space plays and pauses, arrow keys step.",
    );
    said.textContent = sentence();
    counter.textContent = `${at} of ${total} steps done`;
    play.textContent = playing ? "❚❚ pause" : "▶ play";
    play.setAttribute("aria-label", playing ? "pause" : "play");
    back.disabled = at === 0 && !moving;
    next.disabled = at >= total;
    drawCounters();
    drawLinks();
  }

  function sentence() {
    if (moving) return stepInWords(data, at, format);
    if (at === 0) return startInWords(data, format);
    const words = stepInWords(data, at - 1, format);
    return at === data.steps.length ? `${words} ${endInWords(data)}` : words;
  }

  /** Return bytes by source and target over the steps that are done. */
  function sentSoFar() {
    const found = new Map();
    for (const step of data.steps.slice(0, at)) {
      for (const each of step.transfers) {
        const key = `${each.source}>${each.target}`;
        found.set(key, (found.get(key) ?? 0) + each.bytes);
      }
    }
    return found;
  }

  function drawCounters() {
    const bySource = new Map();
    for (const [key, bytes] of sentSoFar()) {
      const source = Number(key.split(">")[0]);
      if (source < data.ranks) bySource.set(source, (bySource.get(source) ?? 0) + bytes);
    }
    const most = Math.max(0, ...bySource.values());
    const least = leastBytes(data);
    const item = (label, text) => html("span", {}, `${label} `, html("b", {}, text));
    const { time_s: whole, bytes_per_rank: all } = data.totals;
    const end = at > 0 ? data.steps[at - 1].end_s ?? null : 0;
    counters.replaceChildren(
      item("sent per rank", `${format.bytes(most)} of ${format.bytes(all)}`),
      least === null
        ? ""
        : item("lower bound", `${format.bytes(least)}, ${leastInWords(data)}${all < least * 0.999 ? " where ranks add; here the switch does" : ""}`),
      whole === null || whole === undefined ? "" : item("time so far", `${format.time(end ?? 0)} of ${format.time(whole)}, at nominal rates`),
    );
  }

  function drawLinks() {
    const sent = sentSoFar();
    const final = data.links;
    const most = Math.max(1, ...final.map((each) => each.bytes));
    const name = (index) => (index < data.ranks ? index : "switch");
    links.replaceChildren(
      ...final.slice(0, LISTED).map((each) => {
        const bytes = sent.get(`${each.source}>${each.target}`) ?? 0;
        const bar = html("i", {});
        bar.style.width = `${(100 * bytes) / most}%`;
        return html("li", {}, html("span", {}, `${name(each.source)} > ${name(each.target)}`), html("span", {}, bar), html("span", {}, format.bytes(bytes)));
      }),
    );
    rest.textContent = final.length > LISTED ? `and ${final.length - LISTED} more` : "";
  }

  function pace() {
    return Number(speed.value) || 1;
  }

  function stop() {
    playing = false;
    moving = false;
    cancelAnimationFrame(timer);
    clearTimeout(timer);
  }

  function go(step) {
    if (!data) return;
    stop();
    at = Math.max(0, Math.min(data.steps.length, step));
    draw();
  }

  function stepBack() {
    go(moving ? at : at - 1);
  }

  function stepOn() {
    if (!data) return;
    if (moving) go(at + 1);
    else if (at < data.steps.length) {
      stop();
      advance(() => {});
    }
  }

  function toggle() {
    if (!data) return;
    if (playing) {
      stop();
      draw();
      return;
    }
    if (at >= data.steps.length) at = 0;
    playing = true;
    run();
  }

  function run() {
    if (!playing) return;
    if (at >= data.steps.length) {
      stop();
      draw();
      return;
    }
    advance(() => {
      timer = setTimeout(run, (still.matches ? STEP_MS : REST_MS) / pace());
    });
  }

  /** Show one step on its way, then done; without motion where none is wanted. */
  function advance(then) {
    if (still.matches) {
      at += 1;
      draw();
      then();
      return;
    }
    moving = true;
    draw();
    let start = null;
    const lasts = STEP_MS / pace();
    const tick = (now) => {
      if (!moving) return;
      start ??= now;
      const t = Math.min(1, (now - start) / lasts);
      stage.progress(t * t * (3 - 2 * t));
      if (t < 1) {
        timer = requestAnimationFrame(tick);
        return;
      }
      moving = false;
      at += 1;
      draw();
      then();
    };
    timer = requestAnimationFrame(tick);
  }

  return {
    update(ask, _estimate, signal) {
      const same = asked !== null && JSON.stringify(machine(asked)) === JSON.stringify(machine(ask));
      asked = ask;
      const degree = Number(ask.tp) || 1;
      if (!touched && degree >= 2 && degree <= 16 && Number(count.value) !== degree) count.input.value = degree;
      else if (same && data) return Promise.resolve();
      return load(signal);
    },
    rows() {
      if (!data) return [];
      const rows = [["step", "source", "target", "chunks", "bytes", "reduces"]];
      data.steps.forEach((step, index) => {
        for (const each of step.transfers) {
          rows.push([index + 1, each.source, each.target, (each.chunks ?? [each.chunk]).join(" "), each.bytes, each.reduces]);
        }
      });
      return rows;
    },
  };
}
