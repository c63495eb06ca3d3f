// Collective: how long a message takes by its size, on every path that could carry it.

import { around, html, number, plot } from "../charts.js";
import { sentence } from "../format.js";
import { choice, empty, field, framed, machine, words } from "./parts.js";
import { algorithmName } from "./ring_words.js";

export const id = "collective";
export const title = "Collective";

const LARGEST = 2 ** 33;
const FREE = "free";
const MOST_STEPPED = 16;
/** Ranks that the Algorithms tab draws. */
const LIBRARIES = [
  ["", "default"],
  "nccl",
  "rccl",
  "oneccl",
  "vllm",
  "sglang",
  "trtllm",
  "xla",
  "nccl-tuner",
];
const COLOURS = ["c1", "c2", "c3", "c4", "c5", "c6", "c7"];
const DASHES = { simple: null, ll128: "7 3", ll: "2 3" };

export function mount(root, page) {
  const { format } = page;
  const frame = framed(root);
  let asked = null;
  let messages = [];
  let groups = new Map();
  let shown = null;
  let chosen = null;
  let wanted = page.view("collective_group");
  /* The group that a link names, until it is taken. */
  const group = choice("collective-group", "messages of", [[FREE, "free choice"]], FREE, takeGroup);
  const name = choice("collective-name", "collective", ["all_reduce"], "all_reduce", freely);
  const gpus = field("collective-gpus", "GPUs", "8", freely, { type: "number", min: 2, max: 4096, step: 1 });
  const nodes = field(
    "collective-nodes",
    "nodes",
    "",
    freely,
    { type: "number", min: 1, max: 512, step: 1, placeholder: "fewest" },
  );
  const library = choice("collective-library", "library", LIBRARIES, "", freely);
  const mode = choice("collective-mode", "launch", [["graph", "CUDA graph"], "eager"], "graph", freely);
  const line = html("p", { class: "panel-line", id: "collective-words" });
  const readout = html("p", { class: "panel-line panel-detail", id: "collective-readout" });
  const note = html("p", { class: "panel-note", id: "collective-notes" });
  const nothing = empty("One GPU sends nothing: choose a collective and a count of GPUs to see its curve.");
  nothing.hidden = true;
  const places = html("div", { class: "chart-column" });
  frame.body.append(
    html(
      "div",
      { class: "panel-controls" },
      group.node,
      name.node,
      gpus.node,
      nodes.node,
      library.node,
      mode.node,
    ),
    nothing,
    line,
    places,
    readout,
    note,
  );
  const times = plot(places, page, { height: 380, name: "collective-time", onTarget: follow });
  const rates = plot(places, page, { height: 200, name: "collective-rate", onTarget: follow });

  function body() {
    const said = {
      collective: name.value,
      gpus: Number(gpus.value) || 8,
      ...machine(asked),
      nodes: nodes.value ? Number(nodes.value) : null,
      library: library.value || null,
      mode: mode.value,
    };
    return Object.fromEntries(Object.entries(said).filter(([, value]) => value !== null));
  }

  function freely() {
    group.select.value = FREE;
    keep(FREE);
    load(null);
  }

  function takeGroup(key) {
    fillFrom(key);
    keep(key);
    load(null);
  }

  /** Keep in the address which group is looked at, or which collective by free choice. */
  function keep(key) {
    const free = key === FREE;
    const fields = { name, gpus, nodes, library, mode };
    const kept = Object.entries(fields).map(([each, { value }]) => [`collective_${each}`, free ? value : ""]);
    page.setView({ ...Object.fromEntries(kept), collective_group: key });
  }

  /** Take what a link says of a free choice. */
  function restore() {
    for (const [each, { select, input }] of Object.entries({ name, gpus, nodes, library, mode })) {
      const text = page.view(`collective_${each}`);
      if (text) (select ?? input).value = text;
    }
  }

  function fillFrom(key) {
    const found = groups.get(key)?.[0];
    if (!found) return;
    name.set([...new Set([...(page.catalog?.collectives ?? []), found.collective])], found.collective);
    gpus.input.value = found.ranks;
    nodes.input.value = found.nodes ?? "";
    if (![...library.select.options].some((each) => each.value === (found.library ?? ""))) {
      library.set([...LIBRARIES, found.library], found.library);
    }
    library.select.value = found.library ?? "";
  }

  function load(signal) {
    return frame.run(async (own) => {
      await sweep(own);
    }, signal);
  }

  async function sweep(own) {
    const said = body();
    const top = Math.max(
      LARGEST,
      ...ownMessages(said).map((each) => 2 ** Math.ceil(Math.log2(each.size_bytes))),
    );
    const data = await page.post("api/collective", { ...said, sweep: `8:${top}` }, own);
    if (own.aborted) return;
    shown = { ...data, body: said };
    draw();
  }

  /** Take the groups that this layout has; stay with the chosen one if it is among them. */
  function regroup() {
    groups = new Map();
    for (const each of messages) {
      if (!(each.ranks > 1)) continue;
      const key = [each.group, each.collective, each.ranks, each.nodes, each.library].join(":");
      if (!groups.has(key)) groups.set(key, []);
      groups.get(key).push(each);
    }
    const was = wanted ?? group.value;
    wanted = undefined;
    const options = [...groups].map(([key, [first]]) => [
      key,
      `${first.group} ${words(first.collective)}, ${placeOf(first.ranks, first.nodes)}`,
    ]);
    const keep = groups.has(was) || (was === FREE && chosen === FREE) ? was : options[0]?.[0] ?? FREE;
    group.set([...options, [FREE, "free choice"]], keep);
    fillFrom(keep);
    nothing.hidden = groups.size > 0;
  }

  function draw() {
    const data = shown;
    const sizes = data.size_bytes;
    const own = messagesHere();
    line.textContent = sentence(data);
    note.textContent = [pointsInWords(data.points ?? [], Boolean(asked.profile)), ...(data.notes ?? []).map(asSentence)].join(" ");
    const styles = pathStyles(data.paths);
    times.set({
      x: {
        kind: "log",
        domain: [sizes[0], sizes.at(-1)],
        form: format.bytes,
        base: 2,
        label: "size of the buffer",
      },
      y: {
        kind: "log",
        domain: around(
          [
            ...data.low_s,
            ...data.high_s,
            ...data.paths.flatMap((path) => path.time_s),
            ...own.map(([each]) => each.time_s),
          ],
          1.3,
        ),
        form: format.time,
        label: "time of one call",
      },
      legend: [
        { name: "prediction", colour: "ink", line: 3 },
        { name: `${data.interval?.confidence_pct ?? 90} % interval`, colour: "ink", opacity: 0.16 },
        ...(own.length ? [{ name: "messages of this layout", colour: "accent", shape: "diamond" }] : []),
        ...(data.points?.length ? [{ name: "measured", colour: "muted", ring: true }] : []),
      ],
      bands: [{ colour: "ink", low: pairs(sizes, data.low_s), high: pairs(sizes, data.high_s) }],
      rules: (data.switches ?? [])
        .filter((each) => each.size_bytes > sizes[0])
        .map((each, index) => ({
          x: each.size_bytes,
          name: `${pathName(each)} from ${format.bytes(each.size_bytes)}`,
          short: pathName(each),
          row: index % 3,
          dash: "1 4",
        })),
      series: [
        ...data.paths.map((path, index) => ({
          ...styles[index],
          points: pairs(sizes, path.time_s),
          labelled: true,
        })),
        { name: "prediction", colour: "ink", width: 3, points: pairs(sizes, data.time_s) },
      ],
      marks: [...measured(data), ...own.map(messageMark)],
      targets: columns(data, (index) => [[data.time_s[index], "ink"]]),
      summary:
        `Time of ${words(data.collective)} among ${data.gpus} GPUs by size, from ` +
        `${format.time(data.time_s[0])} at ${format.bytes(sizes[0])} to ` +
        `${format.time(data.time_s.at(-1))} at ${format.bytes(sizes.at(-1))}, ${data.paths.length} paths.`,
      hint: "Arrow keys move through the sizes; the values stand below.",
    });
    const reserve = styles.map((each) => each.short);
    const most = Math.max(...data.busbw_bytes_per_s, data.link?.bytes_per_s ?? 0);
    rates.set({
      reserve,
      x: {
        kind: "log",
        domain: [sizes[0], sizes.at(-1)],
        form: format.bytes,
        base: 2,
        label: "size of the buffer",
      },
      y: {
        kind: "linear",
        domain: [0, most * 1.12],
        form: format.bandwidth,
        label: "bus bandwidth",
        count: 4,
      },
      rules: data.link
        ? [{
          y: data.link.bytes_per_s,
          name: `${data.link.name}: ${format.bandwidth(data.link.bytes_per_s)} nominal`,
          short: `${format.bandwidth(data.link.bytes_per_s)} nominal`,
        }]
        : [],
      series: [{
        name: "bus bandwidth",
        colour: "c1",
        width: 2.5,
        points: pairs(sizes, data.busbw_bytes_per_s),
      }],
      targets: columns(data, (index) => [[data.busbw_bytes_per_s[index], "c1"]]),
      summary: `Bus bandwidth by size, at most ${format.bandwidth(Math.max(...data.busbw_bytes_per_s))}.`,
    });
    tell(nearestSize(own[0]?.[0].size_bytes ?? 2 ** 26));
  }

  function ownMessages(said) {
    return messages.filter(
      (each) =>
        each.collective === said.collective &&
        each.ranks === said.gpus &&
        (said.nodes === undefined || each.nodes === said.nodes) &&
        each.size_bytes > 0,
    );
  }

  /** Return the messages of this layout on the curve; those of one size are one mark. */
  function messagesHere() {
    const sizes = new Map();
    for (const each of ownMessages(shown.body)) {
      const known = sizes.get(each.size_bytes) ?? [];
      sizes.set(each.size_bytes, [...known, each]);
    }
    return [...sizes.values()];
  }

  function columns(data, values) {
    return doublings(data.size_bytes).map(([size, index]) => ({
      x: size,
      title: format.bytes(size),
      values: values(index),
      data: index,
      lines: [
        ["time", format.time(data.time_s[index])],
        ["interval", `${format.time(data.low_s[index])} to ${format.time(data.high_s[index])}`],
        ["bus bandwidth", format.bandwidth(data.busbw_bytes_per_s[index])],
        ["path", pathName({ algorithm: data.algorithm[index], protocol: data.protocol[index] })],
      ],
    }));
  }

  function follow(target) {
    if (Number.isInteger(target.data)) tell(target.data);
  }

  function nearestSize(size) {
    const far = ([each]) => Math.abs(Math.log(each / size));
    return doublings(shown.size_bytes).reduce((best, each) => (far(each) < far(best) ? each : best))[1];
  }

  /** Say the values at one size, each to be asked. */
  function tell(index) {
    const size = Math.round(shown.size_bytes[index]);
    const about = { ...shown.body, size: String(size) };
    const path = pathName({ algorithm: shown.algorithm[index], protocol: shown.protocol[index] });
    readout.replaceChildren(
      html("strong", {}, format.bytes(size)),
      " takes ",
      asking(format.time(shown.time_s[index]), "collective.time_s", about, "time"),
      ` (${format.time(shown.low_s[index])} to ${format.time(shown.high_s[index])}) by ${path}: `,
      "bus bandwidth ",
      asking(format.bandwidth(shown.busbw_bytes_per_s[index]), "collective.busbw", about, "bus bandwidth"),
      ", lower bound ",
      asking(format.time(shown.bound_s[index]), "collective.bound_s", about, "lower bound"),
      ". ",
      steppable(size)
        ? html("button", { type: "button", class: "small", id: "collective-to-ring", on: { click: () => toSteps(size) } },
          "Step through it in Algorithms")
        : "",
    );
  }

  /** Return whether the Algorithms tab can show what is looked at. */
  function steppable(size) {
    const known = page.catalog?.algorithms ?? [];
    return shown.gpus >= 2 && shown.gpus <= MOST_STEPPED && size >= 1 &&
      known.some((each) => each.collectives.includes(shown.collective));
  }

  /** Show the steps of what is looked at, by the algorithm that runs if it is one of those. */
  function toSteps(size) {
    const known = page.catalog.algorithms.filter((each) => each.collectives.includes(shown.collective));
    const at = shown.size_bytes.findIndex((each) => Math.round(each) === size);
    const runs = known.find((each) => each.name === shown.algorithm[at]) ?? known[0];
    page.setView({
      ring_collective: shown.collective, ring_algorithm: runs.name, ring_n: String(shown.gpus), ring_size: String(size),
    });
    document.getElementById("tab-ring")?.click();
  }

  /** Return a number about a collective, which the question alone does not say. */
  function asking(text, figure, collective, label) {
    const node = number(text, figure, { label });
    node.dataset.whyCollective = JSON.stringify(collective);
    return node;
  }

  function measured(data) {
    return (data.points ?? []).map((each) => ({
      x: each.size_bytes,
      y: each.time_s,
      r: 3.2,
      open: true,
      colour: "muted",
      title: `measured: ${format.time(each.time_s)}`,
      lines: [
        ["size", format.bytes(each.size_bytes)],
        ["data set", each.dataset],
        ["library", each.library ?? "–"],
      ],
    }));
  }

  function messageMark(several) {
    const each = several[0];
    const times = several.map((one) => `${format.whole(one.count)} of ${words(one.name)}`);
    return {
      x: each.size_bytes,
      y: each.time_s,
      r: 5.5,
      shape: "diamond",
      colour: "accent",
      name: several.length > 1 ? `${words(each.name)} and ${several.length - 1} more` : words(each.name),
      title: `${each.group} ${words(each.collective)} of this layout`,
      lines: [
        ["size", format.bytes(each.size_bytes)],
        ["each takes", format.time(each.time_s)],
        ["path", pathName(each)],
        ...times,
      ],
    };
  }

  function sentence(data) {
    const what = `${words(data.collective)} among ${placeOf(data.gpus, data.nodes)}`;
    const net = data.network ? `, ${data.network}` : "";
    return asSentence(`${what} of ${data.system}${net}, ${data.library}, ${data.mode === "graph" ? "CUDA graph" : "eager launch"}`);
  }

  return {
    update(ask, _estimate, signal) {
      const first = asked === null;
      asked = ask;
      // Another tab may have named what to show.
      const named = page.view("collective_group") === FREE && group.value !== FREE;
      if (named) wanted = FREE;
      chosen = named ? FREE : group.value;
      return frame.run(async (own) => {
        const found = await page.post("api/messages", ask, own);
        if (own.aborted) return;
        messages = found.messages;
        if (first) chosen = wanted ?? null;
        name.set(page.catalog?.collectives ?? [name.value], name.value);
        if (chosen === FREE) restore();
        regroup();
        await sweep(own);
      }, signal);
    },
    rows() {
      if (!shown) return [];
      const paths = shown.paths.map((path) => `${pathName(path)} time_s`);
      const head = ["size_bytes", "time_s", "low_s", "high_s", "busbw_bytes_per_s", "algorithm", "protocol"];
      return [
        [...head, ...paths],
        ...doublings(shown.size_bytes).map(([, index]) => [
          ...head.map((each) => shown[each][index]),
          ...shown.paths.map((path) => path.time_s[index] ?? ""),
        ]),
      ];
    },
  };
}

function pairs(sizes, values) {
  return sizes.map((size, index) => [size, values[index]]).filter(([, value]) => value !== null && value > 0);
}

/** Return the powers of two among sizes, each with its place: the sizes that are named and asked. */
function doublings(sizes) {
  return sizes
    .map((size, index) => [Math.round(size), index])
    .filter(([size, index]) => Math.abs(size / sizes[index] - 1) < 1e-9 && Number.isInteger(Math.log2(size)));
}

function placeOf(ranks, nodes) {
  return `${ranks} GPUs${nodes > 1 ? ` on ${nodes} nodes` : ""}`;
}

function pathName({ algorithm, protocol }) {
  return [algorithmName(algorithm ?? ""), protocol && protocol !== "none" ? protocol : ""].filter(Boolean).join(" ");
}

/** Return colours by algorithm and dashes by protocol. */
function pathStyles(paths) {
  const algorithms = [...new Set(paths.map((path) => path.algorithm))];
  return paths.map((path) => ({
    name: pathName(path),
    short: pathName(path).replace(/ direct$/, ""),
    colour: COLOURS[algorithms.indexOf(path.algorithm) % COLOURS.length],
    dash: DASHES[String(path.protocol ?? "").toLowerCase()] ?? null,
    width: 1.4,
  }));
}

/** Return a remark as a sentence with its end. */
function asSentence(text) {
  return `${sentence(text)}${text.endsWith(".") ? "" : "."}`;
}

function pointsInWords(points, ofFile) {
  if (!points.length) return `No measured points to show: ${ofFile ? "a file has constants, not the points that they were fitted to"
    : "none of this system, collective and GPU count may be redistributed"}.`;
  const sets = new Map();
  for (const each of points) sets.set(each.dataset, (sets.get(each.dataset) ?? 0) + 1);
  const said = [...sets].map(([name, count]) => `${count} of ${name}`).join(", ");
  return `Open circles: ${points.length} measurements (${said}).`;
}
