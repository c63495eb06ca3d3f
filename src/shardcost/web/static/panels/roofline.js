// Roofline: which operations the arithmetic limits and which the memory, and how near they come.

import { colourOfKind, html, number, plot, SHAPES } from "../charts.js";
import { empty, framed, table, words } from "./parts.js";

export const id = "roofline";
export const title = "Roofline";

const KINDS = ["gemm", "attention", "elementwise"];
const SMALLEST = 3.5;
const LARGEST = 12;

export function mount(root, page) {
  const { format } = page;
  const frame = framed(root);
  let shown = null;
  const line = html("p", { class: "panel-line", id: "roofline-words" });
  const nothing = empty("");
  const place = html("div", {});
  const detail = html("p", { class: "panel-line panel-detail", id: "roofline-detail", role: "status" });
  const list = html("div", { id: "roofline-table" });
  const note = html("p", { class: "panel-note" });
  frame.body.append(line, nothing, place, detail, list, note);
  nothing.hidden = true;
  const chart = plot(place, page, { height: 400, name: "roofline" });

  function draw() {
    const data = shown;
    const drawn = data.operations.filter((each) => each.intensity > 0 && each.flop_per_s > 0);
    const ridge = data.ridge_flop_per_byte;
    nothing.hidden = drawn.length > 0;
    nothing.textContent = "No kernel here counts FLOP.";
    place.hidden = !drawn.length;
    line.textContent =
      `${data.device}, ${data.dtype}: ${format.flops(data.peak_flop_per_s)} at most, memory ` +
      `${format.bandwidth(data.memory_bytes_per_s)}; memory-bound below ${intensity(ridge)}.`;
    detail.textContent = "Choose a mark (click, or arrow keys and Enter) for its details.";
    list.replaceChildren(tableOf(data.operations));
    note.textContent = data.convention;
    if (drawn.length) chart.set(plotOf(data, drawn, ridge));
  }

  function plotOf(data, drawn, ridge) {
    const left = Math.min(ridge / 8, ...drawn.map((each) => each.intensity)) / 1.8;
    const right = Math.max(ridge * 6, ...drawn.map((each) => each.intensity)) * 1.8;
    const low = Math.min(...drawn.map((each) => each.flop_per_s), left * data.memory_bytes_per_s * 0.5) / 1.4;
    const most = Math.max(...drawn.map((each) => each.time_s));
    return {
      x: { kind: "log", domain: [left, right], form: plainNumber, label: "arithmetic intensity, FLOP/byte" },
      y: { kind: "log", domain: [low, data.peak_flop_per_s * 2], form: format.flops, label: "achieved FLOP/s" },
      left: 78,
      legend: KINDS.filter((kind) => drawn.some((each) => each.kind === kind)).map((kind) => ({
        name: words(kind),
        colour: colourOfKind(kind),
        shape: shapeOf(kind),
      })).concat(drawn.every(isForward) ? [] : [{
        name: "hollow: recompute and backward",
        colour: "muted",
        ring: true,
      }]),
      rules: [{ x: ridge, name: `ridge, ${intensity(ridge)}` }],
      series: [
        {
          name: "roof",
          colour: "ink",
          width: 2,
          points: [
            [left, left * data.memory_bytes_per_s],
            [ridge, data.peak_flop_per_s],
            [right, data.peak_flop_per_s],
          ],
        },
      ],
      marks: drawn.map((each) => ({
        x: each.intensity,
        y: each.flop_per_s,
        r: SMALLEST + (LARGEST - SMALLEST) * Math.sqrt((each.time_s) / most),
        shape: shapeOf(each.kind),
        colour: colourOfKind(each.kind),
        opacity: 0.85,
        open: !isForward(each),
        name: isForward(each) ? labelOf(each) : "",
        title: labelOf(each),
        lines: linesOf(each),
        pick: () => tell(each),
      })),
      summary:
        `Roofline of ${data.device}: ${drawn.length} operations, ` +
        `${drawn.filter((each) => each.intensity < ridge).length} of them under the memory's slope.`,
      hint: "Arrow keys move through the operations, Enter shows one below.",
    };
  }

  function labelOf(each) {
    const plain = isForward(each) || each.name.includes("gradient");
    return plain ? words(each.name) : `${words(each.name)}, ${each.pass}`;
  }

  function linesOf(each) {
    return [
      ["reaches", format.flops(each.flop_per_s)],
      ["roof", `${format.flops(each.roof_flop_per_s)}, ${format.percent(each.share_of_roof)} of it`],
      ["intensity", intensity(each.intensity)],
      ["takes", `${format.time(each.time_s)}${each.count > 1 ? `, ${each.count} together` : ""}`],
      ["moves", format.bytes(each.bytes)],
    ];
  }

  function tell(each) {
    detail.replaceChildren(
      html("strong", {}, labelOf(each)),
      " takes ",
      timeOf(each),
      `, does ${format.flops(each.flops).replace("/s", "")} and moves ${format.bytes(each.bytes)}: ` +
        `${format.flops(each.flop_per_s)}, ${format.percent(each.share_of_roof)} of what ` +
        `${limitOf(each)} allows.`,
    );
  }

  /** Return the time of an operation; that of one by itself can be asked. */
  function timeOf(each) {
    const text = format.time(each.time_s);
    return each.count === 1 ? number(text, `op.${each.name}`, { label: `time of ${each.name}` }) : text;
  }

  function limitOf(each) {
    return words(each.limit);
  }

  function tableOf(operations) {
    const head = ["operation", "kind", "time", "count", "FLOP/byte", "rate", "of the roof", "limit"];
    return table(
      "operations under the roof",
      head,
      operations.map((each) => ({
        cells: [
          labelOf(each),
          words(each.kind),
          timeOf(each),
          String(each.count ?? 1),
          each.intensity > 0 ? plainNumber(each.intensity) : "–",
          each.flop_per_s > 0 ? format.flops(each.flop_per_s) : format.bandwidth(each.bytes_per_s),
          format.percent(each.share_of_roof),
          limitOf(each),
        ],
      })),
      { right: [2, 3, 4, 5, 6] },
    );
  }

  function intensity(value) {
    return `${plainNumber(value)} FLOP/byte`;
  }

  function plainNumber(value) {
    return format.digits(value);
  }

  return {
    update(ask, _estimate, signal) {
      return frame.run(async (own) => {
        const data = await page.post("api/roofline", ask, own);
        if (own.aborted) return;
        shown = data;
        draw();
      }, signal);
    },
    rows() {
      if (!shown) return [];
      const head = [
        "name",
        "kind",
        "pass",
        "count",
        "flops",
        "bytes",
        "time_s",
        "intensity",
        "flop_per_s",
        "roof_flop_per_s",
        "share_of_roof",
      ];
      return [head, ...shown.operations.map((each) => head.map((name) => each[name] ?? ""))];
    },
  };
}

function isForward(each) {
  return !each.pass || each.pass === "forward";
}

function shapeOf(kind) {
  return SHAPES[Math.max(0, KINDS.indexOf(kind)) % SHAPES.length];
}
