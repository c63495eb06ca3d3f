// From quantities to pixels and back, with ticks at round values of the unit they are written in.

/** Return a scale with even steps. */
export function linear([low, high], [from, to]) {
  const span = high - low || 1;
  const scale = (value) => from + ((value - low) / span) * (to - from);
  scale.invert = (pixel) => low + ((pixel - from) / (to - from)) * span;
  scale.domain = [low, high];
  scale.ticks = (count, base = 10) => evenTicks(low, high, count, base);
  scale.kind = "linear";
  return scale;
}

/** Return a logarithmic scale. */
export function logarithmic([low, high], [from, to]) {
  const start = Math.log(low);
  const span = Math.log(high) - start || 1;
  const scale = (value) => from + ((Math.log(value) - start) / span) * (to - from);
  scale.invert = (pixel) => Math.exp(start + ((pixel - from) / (to - from)) * span);
  scale.domain = [low, high];
  scale.ticks = (count, base = 10) => powerTicks(low, high, count, base);
  scale.kind = "log";
  return scale;
}

/** Return round values, at most about `count`; with base 2 they are round in KiB, MiB, … */
function evenTicks(low, high, count, base) {
  if (!(high > low)) return [low];
  let unit = 1;
  if (base === 2) while (unit * 1024 <= high) unit *= 1024;
  const rough = (high - low) / unit / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((each) => each * power).find((each) => each >= rough * 0.999);
  const size = step * unit;
  const ticks = [];
  for (let index = Math.ceil(low / size - 1e-9); index * size <= high + size * 1e-9; index += 1) {
    ticks.push(index * size);
  }
  return ticks;
}

/** Return powers of the base (of 1024 as far as possible with base 2), thinned to `count`. */
function powerTicks(low, high, count, base) {
  const log = Math.log(base);
  const first = Math.ceil(Math.log(low) / log - 1e-9);
  const last = Math.floor(Math.log(high) / log + 1e-9);
  const strides = base === 2 ? [1, 2, 5, 10, 20, 30] : [1, 2, 3, 6, 9];
  const held = (each) => Math.floor(last / each) - Math.ceil(first / each) + 1;
  const stride = strides.find((each) => held(each) <= count) ?? strides.at(-1);
  const ticks = [];
  for (let power = Math.ceil(first / stride) * stride; power <= last; power += stride) {
    ticks.push(base ** power);
  }
  if (base === 10 && ticks.length < 3) return withSteps(low, high);
  return ticks;
}

function withSteps(low, high) {
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    for (const step of [1, 2, 5]) {
      const value = step * 10 ** power;
      if (value >= low * 0.999 && value <= high * 1.001) ticks.push(value);
    }
  }
  return ticks;
}

/** Return the domain from zero (or the least) to a little above the most. */
export function fromZero(values, room = 1.06) {
  const most = Math.max(0, ...values.filter(Number.isFinite));
  return [0, most > 0 ? most * room : 1];
}

/** Return a logarithmic domain around values above zero. */
export function around(values, room = 1.25) {
  const known = values.filter((each) => Number.isFinite(each) && each > 0);
  if (!known.length) return [1, 10];
  return [Math.min(...known) / room, Math.max(...known) * room];
}

/** Move labels apart: each {at, size} gets `put`, in order, no two nearer than their sizes. */
export function apart(labels, low, high) {
  const sorted = [...labels].sort((a, b) => a.at - b.at);
  let floor = low;
  for (const each of sorted) {
    each.put = Math.max(each.at, floor + each.size / 2);
    floor = each.put + each.size / 2;
  }
  let ceiling = high;
  for (const each of sorted.reverse()) {
    each.put = Math.min(each.put, ceiling - each.size / 2);
    ceiling = each.put - each.size / 2;
  }
  return labels;
}
