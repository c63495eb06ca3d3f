"""What is asked of the browser about how the page looks: functions that run on the page."""

from __future__ import annotations

FOCUSABLE = """
  a[href], button, input, select, textarea, summary, [tabindex]
"""
"""What can have the focus, as a selector."""

STOPS = """(selector) => {
  const seen = (each) => each.checkVisibility({ visibilityProperty: true });
  const name = (each) => each.id || each.dataset.why || each.dataset.half || each.dataset.double
    || each.dataset.save || each.getAttribute("aria-label") || each.textContent.trim().slice(0, 40)
    || each.className;
  window.stops = [...document.querySelectorAll(selector)].filter((each) => seen(each)
    && !each.disabled && each.tabIndex >= 0 && !(each.type === "radio" && !each.checked));
  return window.stops.map((each) => `${each.tagName} ${name(each)}`);
}"""
"""Where the Tab key should stop, by name, given what can have the focus."""

NOW = """() => {
  const now = document.activeElement;
  // A slider's focus is seen on its thumb, a hidden radio's on the word beside it.
  const ringed = [now, now.querySelector(".thumb"), now.nextElementSibling].some((each) => {
    const style = each && getComputedStyle(each);
    return style && parseFloat(style.outlineWidth) > 0 && style.outlineStyle !== "none";
  });
  return [window.stops.indexOf(now), now.tagName, ringed];
}"""
"""Which of those stops has the focus, what it is, and whether that is seen."""

TOO_SMALL = """([touch, inline]) => [...document.querySelectorAll(
    "a[href], button, input, select, summary, [role=slider]")].flatMap((each) => {
  if (!each.checkVisibility() || each.closest(".unseen, .skip, svg")) return [];
  const target = each.matches("input[type=checkbox], input[type=radio]")
    ? each.closest("label, .check") ?? each : each;
  const { width, height } = target.getBoundingClientRect();
  if (width < 2) return [];
  const least = each.matches(".number, .load") ? inline : touch;
  const said = each.id || each.className || each.textContent.trim().slice(0, 30);
  return height >= least - 0.5 ? [] : [`${each.tagName} ${said}: ${height.toFixed(1)}`];
})"""
"""What is lower than a finger needs, given pixels for controls and for numbers among words."""

PALE = """(least) => {
  const parsed = (text) => (text.match(/[\\d.]+/g) ?? []).map(Number);
  const over = (top, under) => {
    const alpha = top[3] ?? 1;
    return [0, 1, 2].map((i) => top[i] * alpha + under[i] * (1 - alpha));
  };
  const light = (rgb) => {
    const [r, g, b] = rgb.map((each) => each / 255)
      .map((each) => (each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (element) => {
    const layers = [];
    for (let each = element; each; each = each.parentElement) {
      const style = getComputedStyle(each);
      if (style.backgroundImage !== "none") return null;
      layers.push(parsed(style.backgroundColor));
      if ((layers.at(-1)[3] ?? 1) === 1) break;
    }
    return layers.reverse().reduce((under, top) => over(top, under), [255, 255, 255]);
  };
  const found = new Set();
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walk.nextNode(); node; node = walk.nextNode()) {
    const each = node.parentElement;
    if (!node.textContent.trim() || !each.checkVisibility()) continue;
    // Texts of most charts stand on coloured bars; those of curves on the panel itself.
    if (each.closest("svg") && !each.closest("#panel-collective svg.chart")) continue;
    if (each.closest(".unseen, .skip, option, :disabled, [data-stale]")) continue;
    if (each.closest("[aria-disabled=true]")) continue;
    const behind = ground(each);
    if (!behind) continue;
    const style = getComputedStyle(each);
    const ink = over(parsed(each.closest("svg") ? style.fill : style.color), behind);
    const [a, b] = [light(ink), light(behind)];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    if (contrast < (large ? 3 : least)) {
      const said = node.textContent.trim().slice(0, 30);
      found.add(`${each.className || each.tagName}: ${contrast.toFixed(2)} "${said}"`);
    }
  }
  return [...found];
}"""
"""Texts with less contrast than given to what is behind them."""

REDRAWN = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
"""Ends once charts are drawn in the colours of another theme."""

COVERED = """() => {
  const boxes = (each) => {
    const range = document.createRange();
    range.selectNodeContents(each);
    return [...range.getClientRects()];
  };
  const cross = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
    && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1;
  const said = "#headline :is(h1, h2, p, button, .badge, .label, .what)";
  const all = [...document.querySelectorAll(said)].filter((each) => each.checkVisibility());
  return all.flatMap((one, i) => all.slice(i + 1)
    .filter((other) => !one.contains(other) && !other.contains(one)
      && boxes(one).some((a) => boxes(other).some((b) => cross(a, b))))
    .map((other) => `${one.textContent} / ${other.textContent}`));
}"""
"""Texts of the headline that lie over one another."""

CUT = """() => {
  const found = new Set();
  const left = "svg, .unseen, .skip, pre, textarea, dialog:not([open])";
  for (const each of document.body.querySelectorAll("*")) {
    if (!each.checkVisibility({ visibilityProperty: true }) || each.closest(left)) continue;
    const style = getComputedStyle(each);
    if (["hidden", "clip"].includes(style.overflowX) && each.scrollWidth > each.clientWidth + 1
        && each.textContent.trim()) found.add(each.textContent.trim().slice(0, 60));
    const said = each.matches("select") ? each.selectedOptions[0]?.textContent
      : each.matches("input[placeholder]") && !each.value ? each.placeholder : null;
    if (!said) continue;
    const ink = document.createElement("canvas").getContext("2d");
    ink.font = `${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
    const arrow = each.matches("select") ? 18 : -1;
    const room = each.clientWidth - arrow
      - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
    if (ink.measureText(said).width > room) found.add(`${each.id}: ${said}`);
  }
  return [...found];
}"""
"""Texts that are cut off, those of lists and of empty fields too."""

CROWDED = """() => {
  const left = ".unseen, .skip, option, dialog:not([open]), #tip, title, pre, .bar";
  const texts = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const seen = { visibilityProperty: true, opacityProperty: true };
  for (let node = walk.nextNode(); node; node = walk.nextNode()) {
    const each = node.parentElement;
    if (!node.textContent.trim() || !each.checkVisibility(seen) || each.closest(left)) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const frame = each.closest(".controls, .table-wrap, .table-box, #tabs")
      ?.getBoundingClientRect();
    for (const box of range.getClientRects()) {
      const within = !frame || (box.bottom <= frame.bottom && box.right <= frame.right + 1);
      if (box.width > 1 && within) texts.push([box, node]);
    }
  }
  texts.sort(([a], [b]) => a.top - b.top);
  const found = new Set();
  texts.forEach(([a, one], i) => {
    for (const [b, other] of texts.slice(i + 1)) {
      if (b.top >= a.bottom - 3) break;
      const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (one !== other && wide > 2 && high > 4) {
        found.add([one, other].map((each) => each.textContent.trim().slice(0, 40)).join(" / "));
      }
    }
  });
  return [...found];
}"""
"""Texts that lie over one another, those of charts and sliders too."""

MISNAMED = """() => [...document.querySelectorAll("button[aria-label], summary[aria-label]")]
  .filter((each) => each.checkVisibility()
    && /[\\p{L}\\p{N}]/u.test(each.innerText)
    && !each.getAttribute("aria-label").includes(each.innerText.trim()))
  .map((each) => `${each.innerText.trim()}: ${each.getAttribute("aria-label")}`)"""
"""Buttons whose name is not what is written on them, so that it cannot be said to press them."""

HEADINGS = """() => [...document.querySelectorAll("h1, h2, h3, h4, h5, h6")]
  .filter((each) => each.checkVisibility()).map((each) => Number(each.tagName[1]))"""
"""Levels of the headings in sight, in order."""

MEETING = """([worded, boxed]) => {
  const words = document.createRange();
  words.selectNodeContents(document.querySelector(worded));
  const box = document.querySelector(boxed).getBoundingClientRect();
  return [...words.getClientRects()].some((one) => one.left < box.right
    && box.left < one.right && one.top < box.bottom && box.top < one.bottom);
}"""
"""Whether the words of one element lie over the box of another."""
