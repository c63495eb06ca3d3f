// Timeline: what every stage and stream does when, in one layer or in a whole step.

import { colourOfGroup, colourOfKind, gantt, html, number } from "../charts.js";
import { empty, framed, table } from "./parts.js";

export const id = "timeline";
export const title = "Timeline";

const LISTED = 200;
const VIEWS = [
  ["layer", "one layer"],
  ["step", "the whole step"],
];
const KINDS = {
  gemm: "GEMM",
  attention: "attention",
  elementwise: "elementwise (memory-bound)",
  optimizer: "optimizer",
  forward: "forward",
  backward: "backward",
  weight: "weight gradients",
  recompute: "recompute",
  host: "host",
  idle: "idle (bubble)",
};
const OPACITY = { backward: 0.72, weight: 0.5, recompute: 0.6 };
const ORDER = [...Object.values(KINDS).slice(0, -1), "TP", "CP", "EP", "PP", "DP", KINDS.idle];
/** Of the legend. */
const SHORT = { forward: "F", backward: "B", weight: "W", recompute: "R" };

export function mount(root, page) {
  const { format } = page;
  const frame = framed(root);
  let of = VIEWS.some(([name]) => name === page.view("timeline_of")) ? page.view("timeline_of") : "layer";
  let asked = null;
  let shown = null;
  let whole = null;
  const buttons = VIEWS.map(([name, text]) =>
    html(
      "button",
      {
        type: "button",
        id: `timeline-${name}`,
        "aria-pressed": String(name === of),
        on: { click: () => view(name) },
      },
      text,
    ),
  );
  const totals = html("p", { class: "panel-line", id: "timeline-totals" });
  const step = html("p", { class: "panel-line", id: "timeline-figures" });
  const cut = html("p", { class: "panel-note", id: "timeline-cut", hidden: true });
  const nothing = empty("");
  const place = html("div", {});
  const list = html("div", {});
  const more = html("details", { class: "panel-more" }, html("summary", {}, "All events as a table"), list);
  more.addEventListener("toggle", fillList);
  frame.body.append(
    html(
      "div",
      { class: "panel-controls" },
      html("div", { class: "switch", role: "group", "aria-label": "what is shown" }, buttons),
    ),
    step,
    totals,
    nothing,
    place,
    cut,
    more,
  );
  const chart = gantt(place, page, { height: heightOf, name: "timeline" });
  nothing.hidden = true;

  function heightOf(width) {
    const lanes = shown?.streams.length ?? 2;
    const legend = width < 560 ? 70 : 40;
    return Math.max(230, Math.min(640, lanes * (lanes > 8 ? 30 : 44) + legend + 80));
  }

  async function view(name) {
    of = name;
    page.setView({ timeline_of: name === VIEWS[0][0] ? "" : name });
    buttons.forEach((each, index) => each.setAttribute("aria-pressed", String(VIEWS[index][0] === of)));
    if (asked) await load(null);
  }

  function load(signal) {
    return frame.run(async (own) => {
      const data = await page.post("api/timeline", { ...asked, of }, own);
      if (own.aborted) return;
      shown = data;
      draw();
    }, signal);
  }

  function draw() {
    const data = shown;
    const none = !data.events.length;
    nothing.hidden = !none;
    nothing.textContent = "Nothing runs: there is nothing to draw.";
    place.hidden = none;
    cut.hidden = !data.cut;
    if (data.cut) cut.textContent = `${data.cut.charAt(0).toUpperCase()}${data.cut.slice(1)}.`;
    fillTotals(data);
    fillList();
    if (none) return;
    chart.set({
      span: data.span_s,
      lanes: data.streams,
      events: data.events.map((event) => eventOf(event, data)),
      gap: data.break && { start: data.break.start_s, end: data.break.end_s, words: data.break.words },
      form: format.time,
      legend: legendOf(data),
      summary: summaryOf(data),
    });
  }

  function fillTotals(data) {
    const sums = data.totals;
    const item = (label, seconds) =>
      seconds > 0 && html(
        "span",
        { class: "panel-figure" },
        `${label} `,
        html("b", {}, format.time(seconds)),
      );
    const items = [
      item(data.of === "step" ? "step" : "one layer", data.span_s),
      item("compute", sums.compute_s),
      item("exposed communication", sums.exposed_s),
      item("hidden communication", sums.hidden_s),
      item("bubble", sums.bubble_s),
      item("host", sums.host_s),
    ];
    totals.replaceChildren(...items.filter(Boolean));
  }

  /** Say what the estimate counts of the step, each figure to be asked. */
  function fillStep() {
    const asking = (label, seconds, figure) =>
      seconds > 0 &&
      html("span", { class: "panel-figure" }, `${label} `, number(format.time(seconds), figure, { label }));
    const items = [asking("whole step", whole.time_s, "time_s")];
    for (const [group, each] of Object.entries(whole.comm.by_group)) {
      items.push(asking(`${group.toUpperCase()} exposed`, each.exposed_s, `comm.${group}.exposed_s`));
      items.push(asking(`${group.toUpperCase()} hidden`, each.hidden_s, `comm.${group}.hidden_s`));
    }
    items.push(asking("bubble", whole.parts.bubble ?? 0, "parts.bubble"));
    step.replaceChildren(...items.filter(Boolean));
  }

  function fillList() {
    if (!more.open || !shown) return;
    const rows = shown.events.slice(0, LISTED).map((each) => ({
      cells: [
        each.name,
        shown.streams[each.stream].name,
        format.time(each.start_s),
        format.time(each.end_s - each.start_s),
        state(each),
      ],
    }));
    const left = shown.events.length - rows.length;
    list.replaceChildren(
      table("events of the timeline", ["event", "stream", "start", "lasts", "kind"], rows, { right: [2, 3] }),
      left > 0 ? html("p", { class: "panel-note" }, `${left} more in the CSV.`) : "",
    );
  }

  function eventOf(event, data) {
    const comm = event.kind === "comm" || event.kind === "send";
    const idle = event.kind === "idle";
    const lasts = event.end_s - event.start_s;
    const batch = event.micro_batch ?? null;
    const lines = [
      ["lasts", `${format.time(lasts)}, ${format.percent(lasts / data.span_s)} of what is shown`],
      ["from", `${format.time(event.start_s)} to ${format.time(event.end_s)}`],
      state(event),
    ];
    if (event.group) lines.push(["group", event.group]);
    if (batch !== null) lines.push(["micro-batch", String(batch)]);
    if ((event.chunk ?? null) !== null && event.chunk > 0) lines.push(["virtual stage", String(event.chunk)]);
    return {
      lane: event.stream,
      start: event.start_s,
      end: event.end_s,
      name: event.name,
      short: event.kind in SHORT && batch !== null ? `${SHORT[event.kind]}${batch}` : event.name,
      colour: colourOfKind(event.kind, event.group),
      hatched: idle || (comm && !event.exposed),
      edge: comm && event.exposed,
      opacity: OPACITY[event.kind] ?? null,
      title: event.name,
      lines,
      pick: () => page.why?.(event.why),
    };
  }

  function legendOf(data) {
    const items = new Map();
    for (const each of data.events) {
      const comm = each.kind === "comm" || each.kind === "send";
      const name = comm
        ? `${(each.group ?? "tp").toUpperCase()} communication, ${each.exposed ? "exposed" : "hidden"}`
        : KINDS[each.kind] ?? each.kind;
      if (items.has(name)) continue;
      items.set(name, {
        name,
        colour: comm ? colourOfGroup(each.group) : colourOfKind(each.kind),
        hatched: each.kind === "idle" || (comm && !each.exposed),
        edge: comm && each.exposed,
        opacity: OPACITY[each.kind],
      });
    }
    const rank = (item) => ORDER.findIndex((each) => item.name.startsWith(each));
    return [...items.values()].sort((a, b) => rank(a) - rank(b));
  }

  function summaryOf(data) {
    const sums = data.totals;
    const what = data.of === "step" ? "a step" : "one layer";
    return (
      `Timeline of ${what}: ${format.time(data.span_s)}, ${data.events.length} events on ` +
      `${data.streams.length} streams; ${format.time(sums.compute_s)} of compute, ` +
      `${format.time(sums.exposed_s)} of exposed and ${format.time(sums.hidden_s)} of hidden ` +
      `communication, ${format.time(sums.bubble_s)} of bubble.`
    );
  }

  return {
    update(ask, estimate, signal) {
      asked = ask;
      whole = estimate;
      if (whole) fillStep();
      return load(signal);
    },
    rows() {
      if (!shown) return [];
      const head = [
        "name",
        "stream",
        "start_s",
        "end_s",
        "kind",
        "exposed",
        "group",
        "micro_batch",
        "chunk",
        "pass",
      ];
      return [
        head,
        ...shown.events.map((each) =>
          head.map((name) => (name === "stream" ? shown.streams[each.stream].name : each[name] ?? "")),
        ),
      ];
    },
  };
}

/** Return what an event is, in words. */
function state(event) {
  if (event.kind === "comm" || event.kind === "send") {
    return event.exposed ? "communication, exposed" : "communication, hidden behind compute";
  }
  return KINDS[event.kind] ?? event.kind;
}
