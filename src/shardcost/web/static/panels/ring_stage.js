// The ranks of a collective in a circle, or as the tree that they form, what each holds of every
// chunk, and chunks on their way.

import { figure, svg, textWidth } from "../charts.js";

const TREES = new Set(["binary_tree", "double_binary_tree", "binomial"]);
const LETTERED = 10;
/** Cells at least this wide carry their count as text. */
const REST = 0.35;
/** Where on their way chunks are shown when nothing moves. */

/** Return the picture in `root`; `show(data, at, moving)` draws, `progress(t)` moves chunks. */
export function ringStage(root, page) {
  let scene = null;
  let tokens = [];
  const made = figure(root, page, {
    name: "ring",
    height: (width) => (width < 460 ? 400 : 480),
    draw(frame) {
      tokens = scene ? drawn(frame, scene) : [];
      place(scene?.moving ? scene.t : REST);
    },
  });

  function place(t) {
    if (scene) scene.t = t;
    for (const token of tokens) {
      const [x, y] = along(token.curve, t);
      token.node.setAttribute("transform", `translate(${x.toFixed(1)} ${y.toFixed(1)})`);
    }
  }

  return {
    ...made,
    show(data, at, moving) {
      scene = { data, at, moving, t: 0 };
      made.now();
    },
    progress: place,
  };
}

function drawn(frame, { data, at, moving }) {
  const seats = seated(frame, data);
  const holds = at > 0 ? data.steps[at - 1].holds : data.start;
  const step = moving ? at : at - 1;
  const transfers = step >= 0 && step < data.steps.length ? data.steps[step].transfers : [];
  const fresh = new Set();
  if (!moving) {
    for (const each of transfers) for (const chunk of each.chunks) fresh.add(`${each.target}:${chunk}`);
  }
  drawPaths(frame, seats);
  const arrows = transfers.map((each) => arrow(frame, each, seats, moving));
  const targets = seats.places.map((seat, index) =>
    glyph(frame, data, index, seat, holds[index] ?? [], fresh, seats),
  );
  frame.targets(targets);
  return tokensOf(frame, arrows, seats, data, moving);
}

/** Draw faintly what ranks send along: the circle, or the branches of the tree. */
function drawPaths(frame, seats) {
  const look = { fill: "none", stroke: frame.colour("line"), "stroke-dasharray": "2 5" };
  if (!seats.parents) {
    const [cx, cy] = seats.centre;
    frame.add("ellipse", { cx, cy, rx: seats.radius[0], ry: seats.radius[1], ...look });
    return;
  }
  seats.parents.forEach((parent, rank) => {
    if (parent === null) return;
    const [[x1, y1], [x2, y2]] = [seats.places[rank], seats.places[parent]];
    frame.add("line", { x1, y1, x2, y2, ...look });
  });
}

/**
 * Return each rank's parent (null of the root) where the first chunk goes along a tree, else null.
 * Of two trees it is the one of the first half of the buffer.
 */
export function parentsOf(data) {
  if (!TREES.has(data.algorithm)) return null;
  const parents = new Array(data.ranks).fill(null);
  for (const { transfers } of data.steps) {
    for (const each of transfers) {
      if (!each.chunks.includes(0)) continue;
      const [child, parent] = each.reduces ? [each.source, each.target] : [each.target, each.source];
      parents[child] ??= parent;
    }
  }
  return parents.filter((each) => each === null).length === 1 ? parents : null;
}

/** Return where the ranks of a tree sit: in rows by depth, each over the middle of what is below it. */
function planted(frame, parents, wide, tall) {
  const children = parents.map((_, rank) => parents.flatMap((parent, child) => (parent === rank ? [child] : [])));
  const places = [];
  let leaves = 0;
  let deepest = 0;
  const settle = (rank, depth) => {
    deepest = Math.max(deepest, depth);
    const below = children[rank].map((child) => settle(child, depth + 1));
    const x = below.length ? (below[0] + below.at(-1)) / 2 : (leaves += 1) - 0.5;
    places[rank] = [x, depth];
    return x;
  };
  settle(parents.indexOf(null), 0);
  const across = (frame.width - wide - 8) / Math.max(1, leaves - 1 || 1);
  const down = (frame.height - tall - 8) / Math.max(1, deepest);
  return places.map(([x, depth]) => [
    leaves > 1 ? wide / 2 + 4 + (x - 0.5) * across : frame.width / 2,
    tall / 2 + 4 + depth * down,
  ]);
}

/** Return where ranks sit: in a circle, rank 0 on top, or as a tree; switches in the middle. */
function seated(frame, data) {
  const n = data.ranks;
  const total = data.participants.length;
  const grid = gridOf(data);
  const parents = parentsOf(data);
  const room = Math.min(frame.width, frame.height * 1.5);
  let wide = Math.max(34, Math.min(n > 10 ? 60 : n > 6 ? 106 : 124, (Math.PI * room * 0.72) / n));
  wide = Math.min(wide, frame.width / 3.9);
  if (parents) {
    const leaves = parents.filter((_, rank) => !parents.includes(rank)).length;
    wide = Math.min(wide, (frame.width - 8) / leaves - 4);
  }
  const low = grid.rows > 1 ? Math.max(26, Math.min(96, (frame.height * 1.5) / n)) / grid.rows : Infinity;
  const cell = Math.max(1.6, Math.min(grid.rows > 1 ? 18 : 26, (wide - 8) / grid.columns, low));
  const deep = grid.rows === 1 ? (n > 10 ? 20 : 28) : cell;
  const tall = grid.rows * deep + 24;
  const radius = { x: frame.width / 2 - wide / 2 - 4, y: frame.height / 2 - tall / 2 - 4 };
  const across = Math.min(radius.x, radius.y * 1.35);
  const centre = [frame.width / 2, frame.height / 2];
  if (parents) {
    const places = planted(frame, parents, wide, tall);
    return { places, parents, centre, radius: [across, radius.y], wide, tall, cell, deep, grid };
  }
  const places = [];
  for (let index = 0; index < n; index += 1) {
    const angle = (2 * Math.PI * index) / n - Math.PI / 2;
    places.push([centre[0] + across * Math.cos(angle), centre[1] + radius.y * Math.sin(angle)]);
  }
  for (let index = n; index < total; index += 1) {
    places.push([centre[0], centre[1] + (index - n - (total - n - 1) / 2) * (tall + 12)]);
  }
  return { places, centre, radius: [across, radius.y], wide, tall, cell, deep, grid };
}

function gridOf(data) {
  const { chunks, ranks } = data;
  if (chunks <= 16) return { columns: chunks, rows: 1 };
  const columns = chunks % ranks === 0 && ranks > 2 ? ranks : Math.ceil(Math.sqrt(chunks));
  return { columns, rows: Math.ceil(chunks / columns) };
}

/** Draw one participant with its chunks, filled as far as contributions have arrived. */
function glyph(frame, data, index, [x, y], held, fresh, seats) {
  const isSwitch = index >= data.ranks;
  const { wide, tall, grid, cell, deep } = seats;
  const full = data.complete;
  const done = held.filter((each) => each >= full).length;
  frame.add("rect", {
    x: x - wide / 2,
    y: y - tall / 2,
    width: wide,
    height: tall,
    rx: isSwitch ? 2 : 7,
    fill: frame.colour("panel"),
    stroke: frame.colour(done === data.chunks ? "good" : "muted"),
    "stroke-width": done === data.chunks ? 2 : 1,
    "stroke-dasharray": isSwitch ? "5 3" : null,
  });
  const name = isSwitch ? "switch" : wide > 54 ? `rank ${index}` : String(index);
  frame.text(x, y - tall / 2 + 13, name, { "text-anchor": "middle", "font-size": 11, "font-weight": 600 });
  const left = x - (grid.columns * cell) / 2;
  const top = y - tall / 2 + 18;
  for (let chunk = 0; chunk < data.chunks; chunk += 1) {
    drawCell(frame, {
      x: left + (chunk % grid.columns) * cell,
      y: top + Math.floor(chunk / grid.columns) * deep,
      w: cell - (cell > 5 ? 1.5 : 0.4),
      h: deep - (deep > 5 ? 1.5 : 0.4),
      count: held[chunk] ?? 0,
      full,
      fresh: fresh.has(`${index}:${chunk}`),
    });
  }
  const counts = held.map((each, chunk) => `chunk ${chunk}: ${each} of ${full}`);
  return {
    x: x - wide / 2,
    y: y - tall / 2,
    w: wide,
    h: tall,
    at: [x, y],
    box: [x - wide / 2, y - tall / 2, wide, tall],
    title: isSwitch ? "switch" : `rank ${index}`,
    lines: [
      `${done} of ${data.chunks} chunks complete`,
      ...(data.chunks <= 8 ? counts : []),
    ],
  };
}

function drawCell(frame, { x, y, w, h, count, full, fresh }) {
  const done = count >= full;
  frame.add("rect", {
    x,
    y,
    width: w,
    height: h,
    fill: frame.colour("ground"),
    stroke: frame.colour(fresh ? "ink" : "line"),
    "stroke-width": fresh && w > 5 ? 1.6 : 0.8,
  });
  if (count > 0) {
    const tall = (h * Math.min(count, full)) / full;
    frame.add("rect", {
      x,
      y: y + h - tall,
      width: w,
      height: tall,
      fill: frame.colour(done ? "c3" : "c5"),
      stroke: fresh ? frame.colour("ink") : null,
      "stroke-width": fresh ? Math.min(1, w / 6) : null,
    });
  }
  if (w >= LETTERED && h >= 14) {
    frame.text(x + w / 2, y + h / 2 + 4, String(count), {
      "text-anchor": "middle",
      "font-size": w >= 13 ? 11 : 10,
      "font-weight": done ? 700 : 400,
      stroke: done ? null : frame.colour("panel"),
      "stroke-width": done ? null : 2.5,
      "paint-order": "stroke",
      fill: done ? frame.inkOn("c3") : frame.colour("ink"),
      "pointer-events": "none",
    });
  }
}

/** Draw the way of a transfer; return it as a curve to move along. */
function arrow(frame, transfer, seats, moving) {
  const from = seats.places[transfer.source];
  const to = seats.places[transfer.target];
  const curve = between(from, to, seats);
  const colour = frame.colour(transfer.reduces ? "c2" : "c1");
  const [a, b, c] = curve;
  frame.add("path", {
    d: `M${a.map(short).join(" ")}Q${b.map(short).join(" ")} ${c.map(short).join(" ")}`,
    fill: "none",
    stroke: colour,
    "stroke-width": 1.6,
    "stroke-dasharray": transfer.reduces ? null : "6 3",
    opacity: moving ? 0.85 : 0.4,
    "marker-end": frame.arrow(colour),
  });
  return { transfer, curve, colour };
}

function short(value) {
  return value.toFixed(1);
}

function between(from, to, { wide, tall }) {
  const [dx, dy] = [to[0] - from[0], to[1] - from[1]];
  const cut = Math.min(
    0.42,
    Math.min((wide / 2 + 4) / (Math.abs(dx) || 1e-9), (tall / 2 + 4) / (Math.abs(dy) || 1e-9)),
  );
  const start = [from[0] + dx * cut, from[1] + dy * cut];
  const end = [to[0] - dx * cut, to[1] - dy * cut];
  const bend = 0.1;
  const middle = [(start[0] + end[0]) / 2 + dy * bend, (start[1] + end[1]) / 2 - dx * bend];
  return [start, middle, end];
}

function along([a, b, c], t) {
  const s = 1 - t;
  return [0, 1].map((axis) => s * s * a[axis] + 2 * s * t * b[axis] + t * t * c[axis]);
}

/** Draw what is on its way: which chunk and how large, where there is room. */
function tokensOf(frame, arrows, seats, data, moving) {
  const many = arrows.length > 2 * data.ranks;
  return arrows.map(({ transfer, curve, colour }) => {
    const { chunks } = transfer;
    const node = frame.add("g", { "pointer-events": "none", opacity: moving ? null : 0.75 });
    if (many) {
      if (moving) node.append(svg("circle", { r: 3.5, fill: colour }));
      return { node, curve };
    }
    const crowded = arrows.length > 10;
    const several = crowded ? `${chunks.length}x` : `${chunks.length} chunks`;
    const name = chunks.length === 1 ? `#${chunks[0]}` : several;
    const sign = transfer.reduces ? "+" : "=";
    const short = `${sign}${name}`;
    const long = `${short} ${frame.format.bytes(transfer.bytes)}`;
    const room = Math.hypot(curve[2][0] - curve[0][0], curve[2][1] - curve[0][1]);
    const text = room > 64 && seats.wide >= 64 && !crowded ? long : short;
    const half = textWidth(text, 10.5) / 2 + 5;
    node.append(
      svg("rect", {
        x: -half,
        y: -9,
        width: 2 * half,
        height: 17,
        rx: 4,
        fill: frame.colour("panel"),
        stroke: colour,
        "stroke-width": 1.5,
      }),
      svg(
        "text",
        { x: 0, y: 4, "text-anchor": "middle", "font-size": 10.5, fill: frame.colour("ink") },
        text,
      ),
    );
    return { node, curve };
  });
}
