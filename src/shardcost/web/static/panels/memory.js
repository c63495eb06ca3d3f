// Memory: what the ranks of each stage hold at their peak, what a serving engine takes, and what the
// device has.

import { figure, html, linear, number, textWidth } from "../charts.js";
import { framed, table, words } from "./parts.js";

export const id = "memory";
export const title = "Memory";

const COLOURS = {
  weights: "c1",
  gradients: "c5",
  optimizer: "c4",
  activations: "c3",
  logits: "c7",
  kv_cache: "c6",
  buffers: "#999999",
  framework: "#c4c4c4",
};
const HATCHED = new Set(["buffers", "framework"]);
const BAR = 46;

export function mount(root, page) {
  const { format } = page;
  const frame = framed(root);
  let shown = null;
  const line = html("p", { class: "panel-line", id: "memory-words" });
  const place = html("div", {});
  const list = html("div", { id: "memory-table" });
  const engine = html("p", { class: "panel-note", id: "memory-engine" });
  frame.body.append(line, engine, place, list);
  const chart = figure(place, page, {
    name: "memory",
    height: (width) => 40 + (width < 560 ? 54 : 24) + rowsOf() * (BAR + 20),
    draw(made) {
      if (shown) draw(made);
    },
  });

  function rowsOf() {
    return shown ? Object.keys(shown.memory.stages).length : 1;
  }

  function draw(made) {
    const { memory } = shown;
    const stages = Object.entries(memory.stages);
    const kinds = Object.keys(COLOURS).filter((kind) => stages.some(([, held]) => held[kind] > 0));
    const top =
      made.legend(kinds.map((kind) => ({
        name: words(kind),
        colour: COLOURS[kind],
        hatched: HATCHED.has(kind),
      }))) + 20;
    const left = made.narrow ? 50 : 80;
    const area = { x: left, y: top, w: made.width - left - 16, h: made.height - top - 24 };
    const most = Math.max(memory.capacity_bytes, ...stages.map(([, held]) => held.total));
    const x = linear([0, most * 1.04], [area.x, area.x + area.w]);
    made.axisX(x, area, { form: format.bytes, base: 2 });
    const each = area.h / stages.length;
    const tall = Math.min(BAR, each * 0.7);
    const targets = [];
    stages.forEach(([name, held], index) => {
      const y = area.y + each * (index + 0.5) - tall / 2;
      made.text(area.x - 8, y + tall / 2 + 4, stages.length > 1 ? name : "rank", { "text-anchor": "end" });
      let at = 0;
      for (const kind of kinds) {
        const size = held[kind];
        if (!size) continue;
        const start = x(at);
        at += size;
        const wide = Math.max(0.5, x(at) - start);
        made.add("rect", {
          x: start,
          y,
          width: wide,
          height: tall,
          fill: HATCHED.has(kind) ? made.hatch(COLOURS[kind]) : made.colour(COLOURS[kind]),
          stroke: made.colour("panel"),
        });
        const text = textWidth(words(kind), 11) < wide - 8 ? words(kind) : "";
        const sized = textWidth(format.bytes(size), 11) < wide - 8 ? format.bytes(size) : "";
        if (text && tall > 30) made.text(start + 4, y + 15, text, inkOf(made, kind));
        if (sized && tall > 30) made.text(start + 4, y + 30, sized, inkOf(made, kind));
        targets.push({
          x: start,
          y,
          w: wide,
          h: tall,
          at: [start + wide / 2, y + tall / 2],
          box: [start, y, wide, tall],
          title: `${words(kind)}, ${format.bytes(size)}`,
          lines: [
            ["stage", name],
            ["of the rank's", `${format.bytes(held.total)}, ${format.percent(size / held.total)}`],
            ["of the device", format.percent(size / memory.capacity_bytes)],
          ],
        });
      }
    });
    if (memory.engine_bytes > memory.peak_bytes) reserved(made, memory, x, { ...area, tall, each });
    capacity(made, memory, x, area);
    made.targets(targets);
  }

  function inkOf(made, kind) {
    const hatched = HATCHED.has(kind);
    return {
      "font-size": 11,
      fill: hatched ? made.colour("ink") : made.inkOn(COLOURS[kind]),
      stroke: hatched ? made.colour("panel") : null,
      "stroke-width": hatched ? 3 : null,
      "paint-order": "stroke",
      "pointer-events": "none",
    };
  }

  /** Draw what the engine takes beyond what this step needs. */
  function reserved(made, memory, x, area) {
    const at = Object.keys(memory.stages).indexOf(memory.fullest_stage);
    const [start, end] = [x(memory.peak_bytes), x(memory.engine_bytes)];
    const y = area.y + area.each * (at + 0.5) - area.tall / 2;
    made.add("rect", {
      x: start, y, width: end - start, height: area.tall, fill: "none",
      stroke: made.colour(COLOURS.kv_cache), "stroke-dasharray": "4 3",
    });
    const text = ["more KV cache, taken by the engine", "more KV cache", "engine"]
      .find((each) => textWidth(each, 11) < end - start - 12);
    if (text) made.text(start + 6, y + area.tall / 2 + 4, text, { "font-size": 11, fill: made.colour("muted") });
  }

  function capacity(made, memory, x, area) {
    const at = x(memory.capacity_bytes);
    const colour = made.colour(memory.fits ? "ink" : "bad");
    made.add("line", {
      x1: at,
      x2: at,
      y1: area.y - 12,
      y2: area.y + area.h,
      stroke: colour,
      "stroke-width": 2,
      "stroke-dasharray": "7 4",
    });
    made.text(at - 5, area.y - 4, `${format.bytes(memory.capacity_bytes)} of a device`, {
      "text-anchor": "end",
      "font-size": 11,
      fill: colour,
    });
  }

  function tell() {
    const { memory } = shown;
    const peak = number(
      format.bytes(memory.peak_bytes),
      "memory_bytes",
      { label: "memory of the fullest rank" },
    );
    const room = memory.capacity_bytes - memory.peak_bytes;
    const where = Object.keys(memory.stages).length > 1 ? `the ${memory.fullest_stage} stage` : "a rank";
    const when = shown.workload?.phase === "train" ? `, ${memory.moment}` : "";
    engine.hidden = !memory.engine;
    engine.textContent = memory.engine ? `Engine: ${memory.engine}.` : "";
    line.replaceChildren(
      `${shown.workload?.phase === "train" ? "At most" : "For this step,"} ${where} ${
        shown.workload?.phase === "train" ? "holds" : "needs"} `,
      peak,
      ` of ${format.bytes(memory.capacity_bytes)}${when}: `,
      memory.fits
        ? html("span", {}, `${format.bytes(room)} (${format.percent(room / memory.capacity_bytes)}) is left.`)
        : html("strong", { class: "is-bad" }, `${format.bytes(-room)} too much.`),
    );
  }

  function tableOf() {
    const { memory } = shown;
    const stages = Object.entries(memory.stages);
    const kinds = Object.keys(COLOURS).filter((kind) => stages.some(([, held]) => held[kind] > 0));
    const cell = (stage, held, kind) => {
      const text = held[kind] ? format.bytes(held[kind]) : "–";
      if (stage !== memory.fullest_stage || !held[kind]) return text;
      return number(text, `memory.${kind}`, { label: words(kind) });
    };
    const rows = kinds.map((kind) => ({
      cells: [words(kind), ...stages.map(([stage, held]) => cell(stage, held, kind))],
    }));
    rows.push({ cells: ["total", ...stages.map(([, held]) => format.bytes(held.total))] });
    if (shown.workload?.phase === "train") rows.push({ cells: [
      "at its peak",
      ...stages.map(([, held]) => held.moment),
    ] });
    return table(
      "memory by kind and stage",
      ["kind", ...stages.map(([stage]) => (stages.length > 1 ? `${stage} stage` : "each rank"))],
      rows,
      { right: stages.map((_, index) => index + 1) },
    );
  }

  return {
    update(_ask, estimate, signal) {
      return frame.run(async () => {
        if (!estimate) return;
        shown = estimate;
        const { memory } = estimate;
        tell();
        list.replaceChildren(tableOf());
        chart.label(
          `Memory of a rank by kind: ${format.bytes(memory.peak_bytes)} of ` +
            `${format.bytes(memory.capacity_bytes)}, ${memory.fits ? "it fits" : "it does not fit"}.`,
        );
        chart.redraw();
      }, signal);
    },
    rows() {
      if (!shown) return [];
      const stages = Object.entries(shown.memory.stages);
      return [
        ["kind", ...stages.map(([stage]) => `${stage}_bytes`)],
        ...[...Object.keys(COLOURS), "total"].map((kind) => [
          kind,
          ...stages.map(([, held]) => held[kind] ?? 0),
        ]),
      ];
    },
  };
}
