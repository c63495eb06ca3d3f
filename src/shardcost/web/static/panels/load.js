// Load: how much load the deployment holds, and how requests fare at one load.
//
// Model, machine, engine and the layout of a worker are those of the page's question; all that a
// load has beside them are fields here, in the link under load_<option>.

import { around, bars, fromZero, html, plot } from "../charts.js";
import { showTexts } from "../export.js";
import { told, unflagged } from "../format.js";
import { LOAD, OPTIONS } from "../state.js";
import { choice, empty, field, framed, table } from "./parts.js";

export const id = "load";
export const title = "Load";

const NONE = "none"; // in a link: a field that begins with a value, and was emptied
const LOADS = { poisson: "rate", closed: "users", trace: "rate" };
const OVER = { rate: "rate", users: "concurrency" };
const UNITS = { rate: "requests/s", users: "users" };
const OF_TRACE = new Set(["arrival", "users", "isl", "osl", "prefix_tokens", "seed"]);
/* What a trace has by itself. */
const MOST_TRACE = 900_000;
/* Bytes: a request to the server holds a little more. */
const LATENCIES = { ttft_ms: "TTFT", tpot_ms: "TPOT", itl_ms: "ITL", e2e_ms: "E2E" };
const DRAWN = [["ttft_ms", "time to the first token (TTFT)", "c1"], ["tpot_ms", "time per output token (TPOT)", "c2"]];
const PERCENTILES = ["mean", "p50", "p90", "p99"];

export function mount(root, page) {
  const { format } = page;
  const frame = framed(root);
  const fields = Object.fromEntries(LOAD.options.filter(({ name }) => name !== "trace")
    .map((option) => [option.name, fieldOf(option)]));
  let asked = null;
  let estimate = null;
  let shown = { sweep: null, point: null, ratio: null };
  let turn = 0;
  let under = Promise.resolve();

  // ------------------------------------------------------------------------------- fields

  const form = html("div", { class: "plan-form" });
  const trace = traceField();
  const more = folded("load-more", "Scheduler and more");
  const pools = folded("load-pools", "Workers, disaggregated prefill");
  for (const option of LOAD.options) {
    if (!fields[option.name]) form.append(trace.node);
    else placeOf(option).append(fields[option.name].node);
  }
  form.append(pools.node, more.node);
  const line = html("p", { class: "panel-line", id: "load-words", role: "status" });
  const about = html("p", { class: "panel-note", id: "load-about" });
  const commands = html("button", { type: "button", class: "small", id: "load-commands", on: { click: showCommands } },
    "Command line…");
  const places = {
    sweep: html("div", { class: "chart-column" }),
    time: html("div", { class: "chart-column" }),
    ratio: html("div", { class: "chart-column" }),
  };
  const figures = html("div", { id: "load-table" });
  const notes = html("ul", { class: "panel-note", id: "load-notes" });
  const splits = html("p", { class: "panel-line", id: "load-ratio-words" });
  const nothing = empty("Requests that all come at once have no rate to vary.");
  const [pointHead, timeHead, ratioHead] = ["", "Over time", "Prefill and decode workers"].map((text) =>
    html("h3", {}, text));
  const point = html("section", { "aria-label": "One load", hidden: true },
    pointHead, figures, html("div", { class: "load-actions" }, commands), notes, timeHead, places.time);
  const division = html("section", { "aria-label": "Prefill and decode workers", hidden: true },
    ratioHead, splits, places.ratio);
  const sweeping = html("section", { "aria-label": "Loads from low to high" },
    html("h3", {}, "How much load it holds"), line, nothing, places.sweep, about);
  root.prepend(form);
  frame.body.append(sweeping, point, division);
  const curves = DRAWN.map(([name]) => plot(places.sweep, page, { height: 240, name: `load-${name.slice(0, 4)}` }));
  const queue = plot(places.time, page, { height: 200, name: "load-queue" });
  const cache = plot(places.time, page, { height: 150, name: "load-kv" });
  const divided = bars(places.ratio, page, { height: 260, name: "load-ratio" });

  function placeOf({ group, place }) {
    if (group === "workers") return pools.grid;
    return group === "engine" || place === "more" ? more.grid : form;
  }

  function fieldOf(option) {
    const { name, kind, label, choices, example, otherwise, default: usual } = option;
    const elementId = `load-${name}`;
    const words = { word: choices, switch: ["on", "off"] }[kind];
    // Without a default of its own, the first choice is what holds.
    const first = kind === "word" && usual === null;
    const made = words || kind === "name"
      ? choice(elementId, label, first ? [["", choices[0]], ...choices.slice(1)] : [["", "default"], ...(words ?? [])],
        "", changed)
      : field(elementId, label, "", changed, {
        type: "text",
        maxlength: 80,
        placeholder: example || briefly(otherwise || String(usual ?? "none")),
      });
    const input = made.select ?? made.input;
    if (made.select && otherwise && !first) input.options[0].textContent = briefly(otherwise);
    made.node.title = option.hint;
    return { option, node: made.node, input };
  }

  function traceField() {
    const input = html("input", { type: "file", id: "load-trace", hidden: true, "aria-label": "Trace",
      accept: ".csv,.jsonl,.txt", on: { change: taken } });
    const choose = html("button", { type: "button", class: "small", id: "load-trace-choose",
      on: { click: () => input.click() } }, "Choose a file…");
    const drop = html("button", { type: "button", class: "small", id: "load-trace-drop", hidden: true,
      on: { click: () => page.set({ trace: null }) } }, "Leave the trace");
    const { label, hint } = LOAD.options.find(({ name }) => name === "trace");
    const node = html("div", { class: "panel-field", title: hint, role: "group", "aria-label": label },
      html("span", {}, label), choose, drop, input);

    async function taken() {
      const [file] = input.files;
      if (!file) return;
      if (file.size > MOST_TRACE) {
        frame.run(() => Promise.reject(Object.assign(
          new Error(`${file.name} is too large for the page; \`shardcost load --trace\` has room`), { status: 413 })));
      } else page.set({ trace: await file.text() }, { push: true });
      input.value = "";
    }

    return { node, drop, choose };
  }

  function folded(name, text) {
    const grid = html("div", { class: "plan-form" });
    return { node: html("details", { class: "more wide", id: name }, html("summary", {}, text), grid), grid };
  }

  /** Return the text of a field, "" where it is empty. */
  function text(name) {
    const value = fields[name].input.value.trim();
    return value === NONE ? "" : value;
  }

  function changed() {
    keep();
    load(null);
  }

  /** Keep in the address what is asked, where it is not what the tab begins with. */
  function keep() {
    const kept = Object.keys(fields).map((name) => {
      const [value, start] = [text(name), LOAD.first[name] ?? ""];
      return [`load_${name}`, value === start ? "" : value || NONE];
    });
    page.setView(Object.fromEntries(kept));
  }

  /** Show what the address asks. */
  function restore() {
    for (const [name, { input, option }] of Object.entries(fields)) {
      const kept = page.view(`load_${name}`) || (LOAD.first[name] ?? "");
      const value = kept === NONE ? "" : kept;
      if (option.kind === "name") listClusters(input, value, option);
      if (input.value.trim() !== value) input.value = value;
    }
    for (const { node, grid } of [pools, more]) {
      if ([...grid.querySelectorAll("input, select")].some((each) => each.value)) node.open = true;
    }
  }

  function listClusters(select, value, { otherwise }) {
    const names = (page.catalog?.clusters ?? []).map((each) => each.name);
    if (value && !names.includes(value)) names.unshift(value);
    if (select.options.length === names.length + 1) return;
    select.replaceChildren(...["", ...names].map((each) => html("option", { value: each }, each || briefly(otherwise))));
  }

  // ------------------------------------------------------------------------------ asking

  function arrival() {
    if (page.trace()) return "trace";
    return text("arrival") || (text("users") && !text("rate") ? "closed" : "poisson");
  }

  function disaggregated() {
    return Boolean(text("prefill_workers") || text("decode_workers"));
  }

  /** Return what serves: the page's question, its replicas as workers, and the fields of workers. */
  function deployment() {
    const sent = {};
    for (const name of ["config", "profile"]) if (asked[name]) sent[name] = asked[name];
    for (const name of LOAD.taken) {
      const training = asked.phase === "train" && (name === "software" || OPTIONS[name].group === "workload");
      if (asked[name] !== undefined && !training) sent[name] = asked[name];
    }
    const { tp = 1, cp = 1, dp = 1, ep = 1 } = estimate.layout;
    delete sent.dp;
    delete sent.gpus;
    // Experts that are spread over replicas make these one worker; others are workers of their own.
    if (ep > tp * cp) sent.dp = dp;
    else if (!text("workers") && !disaggregated()) sent.gpus = estimate.gpus;
    return sent;
  }

  /** Return the question without the load itself. */
  function body() {
    const sent = { ...deployment(), ...(page.trace() ? { trace: page.trace() } : {}) };
    for (const [name, { option }] of Object.entries(fields)) {
      const value = text(name);
      const load = name === "arrival" || name in OVER;
      if (value && !load && !fields[name].node.hidden) sent[name] = valueOf(option.kind, value);
    }
    return sent;
  }

  /** Return what the load itself adds to a question. */
  function loadAt(kind, value) {
    if (kind === "all-at-once") return { arrival: kind };
    return { ...(kind === "trace" ? {} : { arrival: kind }), [LOADS[kind]]: value };
  }

  function load(signal) {
    if (!asked) return Promise.resolve();
    showFields();
    return frame.run(async (own) => {
      const mine = ++turn;
      const stale = () => own.aborted || mine !== turn;
      // One question at a time: the server would simulate those that were overtaken to their end.
      await under;
      if (stale()) return;
      let done = () => {};
      under = new Promise((resolve) => { done = resolve; });
      try {
        await ask(stale);
      } finally {
        done();
      }
    }, signal);
  }

  async function ask(stale) {
    const [sent, kind] = [body(), arrival()];
    const name = LOADS[kind];
    const typed = name && text(name);
    const sweep = name ? await page.post("api/load", { ...sent, sweep: OVER[name] }) : null;
    if (stale()) return;
    const each = sweep?.requests_each;
    // The same requests as in the sweep, so that the load which it holds is shown as it found it.
    const count = each && !sent.requests && each[0] === each[1] ? { requests: each[1] } : {};
    const value = typed ? valueOf("number", typed) : sweep?.holds ?? sweep?.points[0].value;
    const found = await page.post("api/load", { ...sent, ...count, ...loadAt(kind, value) });
    if (stale()) return;
    shown = { sweep, point: { ...found, value, name }, ratio: null };
    draw();
    if (!disaggregated()) return;
    const ratio = await page.post("api/load/ratio", sent);
    if (stale()) return;
    shown.ratio = ratio;
    drawRatio();
  }

  function showFields() {
    const kind = arrival();
    trace.drop.hidden = kind !== "trace";
    trace.choose.hidden = kind === "trace";
    for (const [name, { node, option }] of Object.entries(fields)) {
      node.hidden = (kind === "trace" && OF_TRACE.has(name)) || (name in OVER && LOADS[kind] !== name);
      if (option.group === "workers" && /^prefill_(?!workers)/.test(name)) node.hidden = !disaggregated();
    }
    fields.workers.node.hidden = disaggregated();
  }

  /** Take a load of the sweep, or a split of the GPUs. */
  function take(values) {
    for (const [name, value] of Object.entries(values)) fields[name].input.value = value;
    changed();
  }

  // ------------------------------------------------------------------------------ drawing

  function draw() {
    const { sweep, point: found } = shown;
    nothing.hidden = Boolean(sweep);
    places.sweep.hidden = about.hidden = !sweep;
    line.textContent = sweep?.words ?? "";
    if (sweep) drawSweep(sweep, found);
    point.hidden = false;
    division.hidden = !disaggregated();
    pointHead.textContent = found.name ? `At ${loadText(found.name, found.value)}` : "All at once";
    drawPoint(found);
    drawTime(found.timeline);
    page.announce(sweep?.words ?? found.asked);
  }

  function loadText(name, value) {
    return `${format.significant(value, 4)} ${UNITS[name]}`;
  }

  function drawSweep(sweep, found) {
    const [least, most] = sweep.requests_each.map(format.whole);
    about.textContent = `${sweep.title}. ${least === most ? least : `${least} to ${most}`} requests at each load: `
      + "with few of them a queue has little time to grow, with more the highest load is found more exactly.";
    const name = sweep.over === "rate" ? "rate" : "users";
    if (found.name) fields[name].input.placeholder = `${found.value}${text(name) ? "" : " (highest)"}`;
    fields.requests.input.placeholder = format.whole(found.requests.count);
    const loads = sweep.points.map((each) => each.value);
    const wide = loads.at(-1) / loads[0] > 30;
    const span = wide ? around(loads, 1.1) : fromZero(loads, 1.04);
    DRAWN.forEach(([figure, label, colour], index) => {
      const known = sweep.points.filter((each) => each[figure].p50 !== null);
      curves[index].box.hidden = !known.length;
      if (!known.length) return;
      curves[index].set(curveOf(sweep, found, known, {
        figure, label, colour, name, x: { kind: wide ? "log" : "linear", domain: span },
      }));
    });
  }

  function curveOf(sweep, found, known, { figure, label, colour, name, x }) {
    const high = sweep.limits.percentile > 90 ? "p99" : "p90";
    const limit = sweep.limits[figure];
    const at = (each, part) => each[figure][part] / 1e3;
    const values = known.flatMap((each) => [at(each, "p50"), at(each, high)]);
    const said = known.map((each) => `${each.value}: ${format.time(rounded(at(each, high)))}`);
    const limited = limit ? [{ y: limit / 1e3, name: `limit ${format.time(limit / 1e3)}, of p${sweep.limits.percentile}` }] : [];
    const held = sweep.holds ? [{ x: sweep.holds, name: `holds ${loadText(name, sweep.holds)}`, colour: "ink", dash: "2 3" }] : [];
    const here = found[figure][high] === null || !found.name ? [] : [{
      x: found.value, y: found[figure][high] / 1e3, shape: "diamond", colour: "ink", r: 5,
      title: `shown below: ${loadText(name, found.value)}`, lines: latencyLines(found),
    }];
    const space = around([...values, ...(limit ? [limit / 1e3] : []), ...here.map(({ y }) => y)], 1.5);
    return {
      x: { ...x, form: (value) => format.digits(value), label: UNITS[name] },
      y: { kind: "log", domain: space, form: (value) => format.time(rounded(value)), label },
      rules: [...limited, ...held],
      series: [
        { name: "p50", colour, dash: "3 3", labelled: true, points: known.map((each) => [each.value, at(each, "p50")]) },
        { name: high, colour, width: 2.2, labelled: true, points: known.map((each) => [each.value, at(each, high)]) },
      ],
      marks: [...known.map((each) => ({
        x: each.value, y: at(each, high), r: 4, colour, open: !each.held,
        title: `${loadText(name, each.value)}: ${each.held ? "held" : "not held"}`,
        lines: [...latencyLines(each), ["goodput", `${format.significant(each.goodput_requests_per_s, 3)} requests/s`],
          "click or Enter shows this load"],
        pick: () => take({ [name]: String(each.value) }),
      })), ...here],
      legend: [
        { name: "held", colour, shape: "circle" }, { name: "not held", colour, ring: true },
        { name: "shown below", colour: "ink", shape: "diamond" },
      ],
      summary: `${label} by ${UNITS[name]}, ${high}: ${said.join(", ")}. ${sweep.words}`,
      hint: "Arrow keys move through the loads, Enter shows one.",
    };
  }

  function latencyLines(each) {
    return Object.entries(LATENCIES).filter(([figure]) => each[figure].p50 !== null).map(([figure, label]) =>
      [label, PERCENTILES.slice(1).map((part) => `${part} ${milliseconds(each[figure][part])}`).join(", ")]);
  }

  function milliseconds(value) {
    return value === null ? "-" : format.time(rounded(value / 1e3));
  }

  /** Return a value with the digits that the command prints. */
  function rounded(value) {
    return Number(format.significant(value, 3));
  }

  function drawPoint(found) {
    const rows = Object.entries(LATENCIES).map(([figure, label]) => {
      const limit = found.limits[figure];
      return { cells: [label, ...PERCENTILES.map((part) => milliseconds(found[figure][part])),
        limit ? `at most ${milliseconds(limit)}: kept by ${format.percent(found.kept[figure])}` : ""] };
    });
    const said = html("p", { class: "panel-line", id: "load-asked" }, `${found.title}: ${found.asked}.`);
    const latencies = table("latencies of this load", ["latency", ...PERCENTILES, ""], rows, { right: [1, 2, 3, 4] });
    const others = table("figures of this load", ["figure", "value"], found.lines.map((cells) => ({ cells })));
    others.classList.add("load-lines");
    figures.replaceChildren(said, latencies, others);
    notes.replaceChildren(...found.notes.map((each) => html("li", {}, told(each))));
    notes.hidden = !found.notes.length;
  }

  function drawTime(timeline) {
    const { start_s: starts, end_s: end } = timeline;
    const of = disaggregated() ? " of the decode workers" : "";
    const x = { kind: "linear", domain: [0, end], form: format.time, label: "time since the first arrival" };
    const wide = end / starts.length;
    const stepped = (values) => values.flatMap((value, at) => [[starts[at], value], [starts[at] + wide, value]]);
    const counted = (value) => format.significant(value, 3);
    const counts = [["sequences", "sequences that decode", "c1", null], ["waiting", "requests that wait", "c2", "5 3"]];
    const peak = (name) => Math.max(...timeline[name]);
    queue.set({
      x,
      y: { kind: "linear", domain: fromZero(counts.flatMap(([name]) => timeline[name])), form: counted, label: `batch and queue${of}` },
      legend: counts.map(([, name, colour, dash]) => ({ name, colour, dash, line: true })),
      series: counts.map(([name, said, colour, dash]) => ({ name: said, colour, dash, points: stepped(timeline[name]) })),
      targets: starts.map((start, at) => ({
        x: start + wide / 2,
        title: format.time(rounded(start)),
        lines: counts.map(([name, said]) => [said, counted(timeline[name][at])]),
        values: counts.map(([name, , colour]) => [timeline[name][at], colour]),
      })),
      summary: `Over ${format.time(rounded(end))}: at most ${counted(peak("sequences"))} sequences decode and `
        + `${counted(peak("waiting"))} requests wait, on average of an interval.`,
    });
    cache.set({
      x,
      y: { kind: "linear", domain: [0, 1], form: (value) => format.percent(value).replace(".0", ""), label: `KV cache in use${of}`, count: 4 },
      series: [{ name: "KV cache", colour: "c3", width: 1.8, points: stepped(timeline.kv_share) }],
      targets: starts.map((start, at) => ({
        x: start + wide / 2,
        title: format.time(rounded(start)),
        lines: [["KV cache in use", format.percent(timeline.kv_share[at])]],
        values: [[timeline.kv_share[at], "c3"]],
      })),
      summary: `KV cache of the fullest worker over time: at most ${format.percent(peak("kv_share"))} in use.`,
    });
  }

  function drawRatio() {
    const { ratio } = shown;
    splits.textContent = `${ratio.words} ${format.whole(ratio.requests_each)} requests each: compare splits with one another.`;
    divided.set({
      y: { form: (value) => format.significant(value, 3), label: "highest load held: requests/s per GPU" },
      x: { label: `prefill (P) and decode (D) workers on ${format.whole(ratio.gpus)} GPUs` },
      bars: ratio.splits.map((each) => ({
        name: nameOf(each),
        current: each.own,
        total: `${format.significant(each.requests_per_s_per_gpu, 3)}${each.best ? " · best" : ""}`,
        segments: [{ name: "held", value: each.requests_per_s_per_gpu, colour: each.prefill_workers ? "c1" : "c5" }],
        title: each.prefill_workers ? `${each.prefill_workers} prefill and ${each.workers} decode workers`
          : `${each.workers} workers that do both`,
        lines: [
          ["holds", `${format.significant(each.requests_per_s, 3)} requests/s`],
          ["GPUs in use", `${each.gpus_used} of ${ratio.gpus}`],
          ["first limit", each.limit],
          ...(each.own ? [] : ["click or Enter takes it"]),
        ],
        pick: each.own ? null : () => take(each.prefill_workers
          ? { prefill_workers: String(each.prefill_workers), decode_workers: String(each.workers) }
          : withoutPools(each.workers)),
      })),
      legend: [{ name: "divided", colour: "c1" }, { name: "all workers do both", colour: "c5" }],
      summary: `Requests per second and GPU by split: ${ratio.splits.map((each) =>
        `${nameOf(each)} ${format.significant(each.requests_per_s_per_gpu, 3)}`).join(", ")}. ${ratio.words}`,
      hint: "Arrow keys move through the splits, Enter takes one.",
    });
  }

  function nameOf(split) {
    return split.prefill_workers ? `${split.prefill_workers}P+${split.workers}D` : "both";
  }

  /** Return the fields of one pool with so many workers. */
  function withoutPools(workers) {
    const own = Object.keys(fields).filter((name) => fields[name].option.group === "workers");
    return { ...Object.fromEntries(own.map((name) => [name, ""])), workers: String(workers) };
  }

  function showCommands() {
    const { sweep, point: found } = shown;
    showTexts("The same from a terminal", [
      ["This load", found.command], ...(sweep ? [["Loads from low to high", sweep.command]] : []),
    ]);
  }

  return {
    update(ask_, estimate_, signal) {
      [asked, estimate] = [ask_, estimate_];
      restore();
      return load(signal);
    },
    rows() {
      const { sweep, point: found } = shown;
      if (!found) return [];
      const plain = ["requests_per_s", "output_tokens_per_s", "tokens_per_s_per_gpu", "goodput_requests_per_s",
        "good_share", "kv_peak_share", "preemptions", "rejected", "mean_running", "mean_waiting", "limit"];
      const times = Object.keys(LATENCIES).flatMap((figure) => PERCENTILES.map((part) => [figure, part]));
      const head = ["what", found.name ?? "load", "held", "breaks", ...times.map(([figure, part]) =>
        figure.replace("_ms", `_${part}_ms`)), ...plain];
      const row = (what, each) => [what, each.value ?? "", each.held ?? "", (each.broken ?? []).join(" "),
        ...times.map(([figure, part]) => each[figure][part] ?? ""), ...plain.map((name) => each[name] ?? "")];
      return [head, ...(sweep?.points ?? []).map((each) => row("sweep", each)), row("shown", found)];
    },
  };
}

/** Return what holds where a field is empty, in the room of a field. */
function briefly(otherwise) {
  return { "the engine's own": "engine's own", "as the other pool's": "other pool's" }[otherwise]
    ?? (otherwise.startsWith("what --gpus leaves") ? "by the GPUs" : unflagged(otherwise));
}

/** Return a text as it is sent. */
function valueOf(kind, text) {
  if (kind === "switch") return text === "on";
  return ["whole", "number"].includes(kind) && Number.isFinite(Number(text)) ? Number(text) : text;
}
