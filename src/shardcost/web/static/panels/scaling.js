// Scaling: what more of one option brings, and from where on it brings less.

import { bars, html, number, plot } from "../charts.js";
import { OPTIONS } from "../state.js";
import { choice, empty, framed, table } from "./parts.js";

export const id = "scaling";
export const title = "Scaling";

/** Options that may vary: degrees, and sizes of the work. */
const VARIED = Object.values(OPTIONS).filter(({ name, kind, axis, required }) =>
  kind === "whole" && (axis === "degree" || required || name === "micro_batch"));
const AXES = Object.fromEntries(VARIED.map(({ name, label, hint, axis }) =>
  [name, axis === "degree" && name !== "gpus" ? `${hint.split(":")[0]} (${name})` : label]));
const DEGREES = new Set(["gpus", "tp", "cp", "pp"]);
const PARTS = [
  ["compute_s", "compute", "c1", {}],
  ["exposed_s", "communication, exposed", "c2", { edge: true }],
  ["bubble_s", "idle (bubble)", "muted", { hatched: true }],
  ["other_s", "host and overhead", "muted", {}],
];

const FIRST = "tp";

export function mount(root, page) {
  const { format } = page;
  const frame = framed(root);
  let asked = null;
  let shown = null;
  /* What the estimate is of, defaults and all. */
  let now = null;
  /* What varies unless somebody chose. */
  let first = FIRST;
  const vary = choice("scaling-vary", "vary", Object.entries(AXES), page.view("scaling_vary") ?? FIRST, () => {
    page.setView({ scaling_vary: vary.value === first ? "" : vary.value });
    load(null);
  });
  const line = html("p", { class: "panel-line", id: "scaling-words" });
  const nothing = empty("");
  const places = html("div", { class: "chart-column" });
  const list = html("div", { id: "scaling-table" });
  frame.body.append(
    html(
      "div",
      { class: "panel-controls" },
      vary.node,
      html("span", { class: "panel-hint" }, "click a bar, or Enter on it, to take that value"),
    ),
    line,
    nothing,
    places,
    list,
  );
  nothing.hidden = true;
  const times = bars(places, page, { height: 300, name: "scaling-time" });
  const efficiency = plot(places, page, { height: 150, name: "scaling-efficiency" });
  const ratio = plot(places, page, { height: 150, name: "scaling-ratio" });

  /** Return a row whose reason has no dashes of the command line. */
  function inWords(row) {
    return row.reason ? { ...row, reason: format.unflagged(row.reason) } : row;
  }

  function load(signal) {
    if (!asked) return Promise.resolve();
    return frame.run(async (own) => {
      const data = await page.post("api/scaling", bodyOf(vary.value), own);
      if (own.aborted) return;
      shown = { ...data, rows: data.rows.map(inWords) };
      draw();
    }, signal);
  }

  function bodyOf(name) {
    const body = { ...asked, ...freedBy(name, asked), vary: name, values: valuesOf(name, now) };
    return Object.fromEntries(Object.entries(body).filter(([, value]) => value !== null));
  }

  function draw() {
    const rows = shown.rows;
    const known = rows.filter((row) => row.possible);
    nothing.hidden = known.length > 0;
    nothing.textContent = rows.length
      ? `No value of ${shown.vary} is possible here: ${rows[0].reason ?? "each is refused"}.`
      : `There is nothing to vary about ${shown.vary}.`;
    places.hidden = !known.length;
    line.textContent = sentenceOf(shown);
    list.replaceChildren(tableOf(rows));
    if (!known.length) return;
    times.set(barsOf(rows));
    efficiency.set(
      lineOf(rows, {
        field: "efficiency",
        label: `efficiency: tokens/s/GPU over the first that ${rows.some((row) => row.feasible) ? "fits" : "is possible"}`,
        form: format.percent,
        ticks: (value) => format.percent(value).replace(".0 %", " %"),
        colour: "c1",
        name: "efficiency",
        rule: { y: 0.8, name: "80 %" },
      }),
    );
    ratio.set(
      lineOf(rows, {
        field: "comm_to_compute",
        label: "communication / compute, hidden or not",
        form: (value) => format.significant(value, 3),
        colour: "c2",
        name: "communication / compute",
        rule: { y: 1, name: "as long as compute" },
      }),
    );
  }

  function barsOf(rows) {
    const crossing = shown.crossover ?? {};
    const half = crossing.communication_above_half;
    const low = crossing.efficiency_below_80_pct;
    const at = half ?? low ?? null;
    const hidden = rows.some((row) => row.hidden_s > 0);
    const used = PARTS.filter(([field]) => rows.some((row) => row[field] > 0));
    return {
      y: { form: format.time, label: "time of a step" },
      x: { label: AXES[shown.vary] ?? shown.vary },
      pairs: hidden,
      legend: [
        ...used.map(([, name, colour, more]) => ({ name, colour, ...more })),
        ...(hidden ? [{
          name: "communication, hidden (no part of the step)",
          colour: "c2",
          hatched: true,
        }] : []),
      ],
      bars: rows.map(barOf),
      mark:
        at === null
          ? null
          : {
              index: rows.findIndex((row) => row.value === at),
              name: half ? "more than half is communication" : "below 80 % efficiency",
            },
      summary: `Time of a step by ${shown.vary}: ${sentenceOf(shown)}`,
      hint: "Arrow keys move through the values, Enter takes one.",
    };
  }

  function barOf(row) {
    const current = isCurrent(row);
    const pick = row.possible && !current ? () => page.set(patch(row)) : null;
    if (!row.possible) {
      return {
        name: row.value,
        segments: null,
        title: `${shown.vary} ${row.value}: impossible`,
        lines: [row.reason ?? ""],
        pick: null,
      };
    }
    const share = (value) => `${format.time(value)}, ${format.percent(value / row.time_s)}`;
    const lines = [
      ["step", format.time(row.time_s)],
      ...PARTS.filter(([field]) => row[field] > 0).map(([field, name]) => [name, share(row[field])]),
    ];
    if (row.hidden_s > 0) lines.push(["communication, hidden", format.time(row.hidden_s)]);
    lines.push(["tokens/s/GPU", format.rate(row.tokens_per_s_per_gpu)]);
    lines.push(["memory", format.bytes(row.memory_bytes)]);
    if (!row.fits) lines.push(row.reason ?? "does not fit memory");
    if (pick) lines.push("click or Enter takes it");
    return {
      name: row.value,
      current,
      faded: !row.fits,
      note: row.fits ? null : "does not fit",
      total: format.time(row.time_s),
      segments: PARTS.map(([field, name, colour, more]) => ({
        name,
        value: row[field],
        colour,
        text: format.percent(row[field] / row.time_s),
        ...more,
      })),
      beside: [{ name: "hidden", value: row.hidden_s, colour: "c2", hatched: true }],
      title: `${shown.vary} ${row.value}${row.gpus ? `, ${row.gpus} GPUs` : ""}`,
      lines,
      pick,
    };
  }

  function lineOf(rows, { field, label, form, ticks = form, colour, name, rule }) {
    const known = rows
      .map((row, index) => ({ row, index }))
      .filter(({ row }) => row.possible && Number.isFinite(row[field]));
    const values = known.map(({ row }) => row[field]);
    const top = Math.max(...values, 0);
    const said = known.map(({ row }) => `${row.value}: ${form(row[field])}`);
    return {
      x: {
        kind: "linear",
        domain: [-0.5, rows.length - 0.5],
        form: (value) => rows[Math.round(value)]?.value ?? "",
        count: rows.length,
      },
      y: { kind: "linear", domain: [0, (top || 1) * 1.3], form: ticks, label, count: 3 },
      rules: top > rule.y * 0.55 ? [rule] : [],
      series: [{ name, colour, points: known.map(({ row, index }) => [index, row[field]]) }],
      marks: known.map(({ row, index }) => ({
        x: index,
        y: row[field],
        colour,
        open: !row.fits,
        side: "above",
        name: form(row[field]),
        title: `${shown.vary} ${row.value}`,
        lines: [[name, form(row[field])]],
        pick: isCurrent(row) ? null : () => page.set(patch(row)),
      })),
      summary: `${name} by ${shown.vary}: ${said.join(", ")}.`,
    };
  }

  function tableOf(rows) {
    const head = [
      shown.vary,
      "GPUs",
      "time",
      "tokens/s/GPU",
      "efficiency",
      "exposed",
      "of the step",
      "hidden",
      "comm/compute",
      "memory",
      "fits",
    ];
    return table(
      `scaling over ${shown.vary}`,
      head,
      rows.map((row) => ({
        current: isCurrent(row),
        ...(row.possible ? { cells: cellsOf(row) } : {
          cells: [row.value],
          reason: `impossible: ${row.reason}`,
        }),
      })),
      { right: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9] },
    );
  }

  function cellsOf(row) {
    const ask = patch(row);
    const asking = (text, figure, label) =>
      number(text, figure, { ask, label: `${label} at ${shown.vary} ${row.value}` });
    return [
      row.value,
      format.whole(row.gpus),
      asking(format.time(row.time_s), "time_s", "time"),
      asking(format.rate(row.tokens_per_s_per_gpu), "tokens_per_s_per_gpu", "tokens/s/GPU"),
      format.percent(row.efficiency),
      format.time(row.exposed_s),
      asking(format.percent(row.comm_share), "comm_share", "share of communication"),
      row.hidden_s > 0 ? format.time(row.hidden_s) : "–",
      format.significant(row.comm_to_compute, 3),
      asking(format.bytes(row.memory_bytes), "memory_bytes", "memory"),
      row.fits ? "yes" : html("span", { class: "panel-reason", title: row.reason }, "no"),
    ];
  }

  /** Return what of the question a row stands for. */
  function patch(row) {
    const value = Number(row.value);
    const named = { [shown.vary]: Number.isNaN(value) ? row.value : value };
    const freed = freedBy(shown.vary, asked);
    return { ...freed, ...("gpus" in freed ? { gpus: row.gpus } : {}), ...named };
  }

  function isCurrent(row) {
    return row.possible && String(now?.[shown.vary] ?? "") === row.value;
  }

  return {
    update(ask, estimate, signal) {
      asked = ask;
      const { workload = {}, layout = {}, gpus = ask.gpus } = estimate ?? {};
      now = { ...workload, batch: workload.batch ?? workload.global_batch, ...layout, gpus };
      const names = Object.entries(AXES).filter(([name]) => OPTIONS[name].phases.includes(ask.phase));
      // One GPU by itself has nothing to divide: more of them are what can vary.
      first = gpus === 1 ? "gpus" : FIRST;
      vary.set(names, page.view("scaling_vary") || first);
      return load(signal);
    },
    rows() {
      if (!shown) return [];
      const head = [
        "value",
        "possible",
        "fits",
        "gpus",
        "time_s",
        "compute_s",
        "exposed_s",
        "hidden_s",
        "bubble_s",
        "other_s",
        "comm_to_compute",
        "tokens_per_s_per_gpu",
        "efficiency",
        "comm_share",
        "memory_bytes",
        "reason",
      ];
      return [head, ...shown.rows.map((row) => head.map((name) => row[name] ?? ""))];
    },
  };
}

/** Return the values to go through: doublings around the present one; null for the server's own. */
function valuesOf(name, now) {
  const doublings = (from, powers) => powers.map((power) => from * 2 ** power).filter(Number.isInteger);
  if (name === "gpus") return doublings((now.tp || 1) * (now.cp || 1) * (now.pp || 1), [0, 1, 2, 3, 4, 5, 6]);
  if (OPTIONS[name].axis === "degree") return null;
  return doublings(now[name] || OPTIONS[name].default || 1, [-4, -3, -2, -1, 0, 1, 2, 3]);
}

/** Return what must give way when an option varies: replicas to a given count of GPUs, or it to them. */
function freedBy(name, ask) {
  if (name === "dp") return { gpus: null };
  return DEGREES.has(name) && ask.gpus ? { dp: null } : {};
}

/** Return what the curve comes to, as one sentence. */
function sentenceOf(data) {
  return data.words.length ? `${capital(data.words.join("; "))}.` : "";
}

function capital(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}
