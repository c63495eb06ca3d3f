// The machine that a collective runs on: devices, switches and network ports in layers, links as
// wide as they are busy.

import { figure, textWidth } from "../charts.js";

const ROW = 130;
const NEAR = 0.3;
/** How far along a cable it is named, from the end with the lower number. */

/** Return the picture in `root`; `show(topology, carried)` draws: by link, the share it has carried so far. */
export function topologyPicture(root, page) {
  let data = null;
  const made = figure(root, page, {
    name: "topology",
    height: () => {
      const layers = data ? new Set(data.places.map(layerOf)).size : 2;
      return layers === 1 ? 250 : 76 + (layers - 1) * Math.min(ROW, 420 / layers);
    },
    draw(frame) {
      if (data) drawn(frame, data);
    },
  });
  return {
    ...made,
    show(topology, carried) {
      const links = topology.links.map((link, index) => ({
        ...link, bytes: link.bytes * (carried.get(index) ?? 0), utilisation: (link.utilisation ?? 0) * (carried.get(index) ?? 0),
      }));
      data = { ...topology, links };
      const busiest = links.reduce((most, each) => Math.max(most, each.utilisation ?? 0), 0);
      made.label(
        `${topology.name}: ${topology.places.length} places, ${topology.links.length} directed links, ` +
          `the busiest used ${page.format.percent(busiest)} of the time so far.`,
      );
      made.redraw();
    },
  };
}

/** Return the layer of a place, from the devices outwards. */
function layerOf(place) {
  if (place.kind === "gpu") return 0;
  if (place.kind === "nic") return 3;
  if (place.name.startsWith("leaf")) return 4;
  if (place.name.startsWith("spine")) return 5;
  return place.name.includes("memory") ? 2 : 1;
}

function drawn(frame, topology) {
  const layers = [...new Set(topology.places.map(layerOf))].sort((a, b) => a - b);
  const spots = placed(frame, topology, layers);
  const cables = cablesOf(topology);
  const most = Math.max(...cables.map((each) => each.use), 1e-12);
  const targets = [];
  for (const cable of cables) targets.push(drawCable(frame, cable, spots, topology));
  const busiest = cables.filter((each) => each.use > 0.98 * most && each.use > 0);
  const taken = [];
  for (const cable of busiest) {
    const [x, y] = cable.middle;
    if (taken.some(([a, b]) => Math.abs(a - x) < 64 && Math.abs(b - y) < 14)) continue;
    taken.push([x, y]);
    frame.text(x, y + 4, frame.format.percent(cable.use), {
      "text-anchor": "middle",
      "font-size": 11,
      "font-weight": 700,
      stroke: frame.colour("panel"),
      "stroke-width": 3.5,
      "paint-order": "stroke",
    });
  }
  topology.places.forEach((place, index) => drawPlace(frame, place, spots[index], topology));
  frame.targets(targets);
}

function placed(frame, topology, layers) {
  const high = (frame.height - 60) / Math.max(1, layers.length - 1);
  const outer = layers.length === 1 ? frame.height * 0.78 : 30;
  const servers = [...new Set(topology.places.map((each) => each.server))].sort((a, b) => a - b);
  const room = frame.width - 28;
  const part = room / servers.length;
  return topology.places.map((place, index) => {
    const layer = layerOf(place);
    const y = outer + layers.indexOf(layer) * high;
    const outside = layer >= 4;
    const mates = topology.places
      .map((each, at) => ({ each, at }))
      .filter(({ each }) => layerOf(each) === layer && (outside || each.server === place.server));
    const at = mates.findIndex((mate) => mate.at === index);
    const from = outside ? 14 : 14 + part * servers.indexOf(place.server);
    const wide = outside ? room : part;
    return [from + (wide * (at + 0.5)) / mates.length, y, wide / mates.length];
  });
}

/** Return links two by two, as the cables they are. */
function cablesOf(topology) {
  const found = new Map();
  for (const link of topology.links) {
    const key = link.a < link.b ? `${link.a}-${link.b}` : `${link.b}-${link.a}`;
    const known = found.get(key) ?? {
      a: Math.min(link.a, link.b),
      b: Math.max(link.a, link.b),
      ways: [],
      use: 0,
    };
    known.ways.push(link);
    known.use = Math.max(known.use, link.utilisation ?? 0);
    found.set(key, known);
  }
  return [...found.values()];
}

function drawCable(frame, cable, spots, topology) {
  const { format } = frame;
  const [a, b] = [spots[cable.a], spots[cable.b]];
  const flat = Math.abs(a[1] - b[1]) < 1;
  const far = Math.abs(a[0] - b[0]);
  const lift = flat ? Math.min(a[1] - 14, 18 + far * 0.55) : 0;
  const control = [(a[0] + b[0]) / 2, (a[1] + b[1]) / 2 - 2 * lift];
  cable.middle = [
    a[0] + (b[0] - a[0]) * (flat ? 0.5 : NEAR),
    flat ? a[1] - lift : a[1] + (b[1] - a[1]) * NEAR,
  ];
  frame.add("path", {
    d: `M${written(a)}Q${written(control)} ${written(b)}`,
    fill: "none",
    stroke: frame.colour(cable.use > 0 ? "c2" : "line"),
    "stroke-width": 1 + 5 * Math.min(1, cable.use),
    "stroke-dasharray": cable.use > 0 ? null : "3 3",
    opacity: cable.use > 0 ? 0.35 + 0.65 * Math.min(1, cable.use) : 1,
  });
  const name = (index) => topology.places[index].name;
  return {
    x: cable.middle[0] - 6,
    y: cable.middle[1] - 6,
    w: 12,
    h: 12,
    at: cable.middle,
    dots: [[...cable.middle, "ink"]],
    title: `${name(cable.a)} – ${name(cable.b)}`,
    lines: cable.ways.map((way) => [
      `${name(way.a)} > ${name(way.b)}`,
      `${format.bytes(way.bytes)} at ${format.bandwidth(way.bytes_per_s)}, ` +
        `${format.percent(way.utilisation ?? 0)} used`,
    ]),
  };
}

function written([x, y]) {
  return `${x.toFixed(1)} ${y.toFixed(1)}`;
}

function drawPlace(frame, place, [x, y, room], topology) {
  const gpus = topology.places.filter((each) => each.kind === "gpu").length;
  const round = place.kind === "gpu";
  const crowded = gpus > 8 || frame.narrow;
  const text = round ? place.name.replace(/^gpu /, crowded ? "" : "GPU ") : place.name;
  const many = topology.places.filter((each) => layerOf(each) === layerOf(place)).length;
  const short = !round && many > 4 ? text.replace(/^(nic|spine) /, "").replace(/^leaf /, "L") : text;
  const size = room < 20 ? 9 : 11;
  const half = Math.min(
    room / 2 - 0.5,
    round ? (crowded ? 11 : 24) : Math.max(14, textWidth(short, 11) / 2 + 6),
  );
  frame.add("rect", {
    x: x - half,
    y: y - 11,
    width: 2 * half,
    height: 22,
    rx: round ? 7 : 2,
    fill: frame.colour("panel"),
    stroke: frame.colour(round ? "c1" : "muted"),
    "stroke-width": round ? 1.6 : 1,
    "stroke-dasharray": place.kind === "nic" ? "3 2" : null,
  });
  if (textWidth(short, size) < 2 * half) {
    frame.text(x, y + 4, short, { "text-anchor": "middle", "font-size": size });
  }
}
