// What has been sent so far: by rank against the least that is possible, and from rank to rank.

import { html } from "../charts.js";

const LISTED = 48;

/** Return both counts; `show(data, at)` fills them for the steps that are done. */
export function ringCounts(format) {
  const counters = html("div", { class: "ring-counters", id: "ring-counters" });
  const links = html("ol", {
    class: "ring-links",
    id: "ring-links",
    tabindex: "0",
    "aria-label": "bytes sent from rank to rank so far",
  });
  const rest = html("span", { class: "panel-hint" });

  function item(label, text) {
    return html("span", {}, `${label} `, html("b", {}, text));
  }

  function fillCounters(data, at, sent) {
    const { time_s: whole, bytes_per_rank: all, least_bytes_per_rank: least } = data.totals;
    const most = format.bytes(mostOf(sent, data.ranks));
    const items = [item("sent per rank", `${most} of ${format.bytes(all)}`)];
    if (least !== null) {
      const below = all < least * 0.999 ? " where ranks add; here the switch does" : "";
      items.push(item("lower bound", `${format.bytes(least)}, ${data.totals.least_in_words}${below}`));
    }
    if (whole !== null && whole !== undefined) {
      const passed = at > 0 ? data.steps[at - 1].end_s : 0;
      items.push(item("time so far", `${format.time(passed)} of ${format.time(whole)}, links at nominal rates, no latency`));
    }
    counters.replaceChildren(...items);
  }

  function fillLinks(data, sent) {
    const most = Math.max(1, ...data.links.map((each) => each.bytes));
    const name = (index) => (index < data.ranks ? index : "switch");
    const rows = data.links.slice(0, LISTED).map((each) => {
      const bytes = sent.get(`${each.source}>${each.target}`) ?? 0;
      const bar = html("i", {});
      bar.style.width = `${(100 * bytes) / most}%`;
      const way = `${name(each.source)} > ${name(each.target)}`;
      return html(
        "li",
        {},
        html("span", {}, way),
        html("span", {}, bar),
        html("span", {}, format.bytes(bytes)),
      );
    });
    links.replaceChildren(...rows);
    const left = data.links.length - rows.length;
    rest.textContent = left > 0 ? `and ${left} more` : "";
  }

  return {
    counters,
    links,
    rest,
    show(data, at) {
      const sent = sentSoFar(data, at);
      fillCounters(data, at, sent);
      fillLinks(data, sent);
    },
  };
}

/** Return bytes by source and target over the steps that are done. */
function sentSoFar(data, at) {
  const found = new Map();
  for (const step of data.steps.slice(0, at)) {
    for (const each of step.transfers) {
      const key = `${each.source}>${each.target}`;
      found.set(key, (found.get(key) ?? 0) + each.bytes);
    }
  }
  return found;
}

/** Return what the rank that sent most has sent. */
function mostOf(sent, ranks) {
  const totals = new Array(ranks).fill(0);
  for (const [key, bytes] of sent) {
    const source = Number(key.split(">")[0]);
    if (source < ranks) totals[source] += bytes;
  }
  return Math.max(...totals);
}
