/** Scales of a chart: at(value) is its place between 0 and 1; ticks are [value, label]. */

import { number } from "./format.js";

/** Base-2 logarithm over the given values, with ticks at the given places. */
export function log2Scale(values, ticks) {
  const [low, high] = [Math.min(...values), Math.max(...values)].map(Math.log2);
  const room = high > low ? 0.03 * (high - low) : 0.5;
  return {
    at: (value) => clamp((Math.log2(value) - low + room) / (high - low + 2 * room)),
    ticks: [...new Set(ticks)].sort((a, b) => a - b).map((tick) => [tick, number(tick)]),
  };
}

/** The whole powers of two between the smallest and the largest value. */
export function powersOfTwo(values) {
  const [low, high] = [
    Math.max(0, Math.ceil(Math.log2(Math.min(...values)))),
    Math.floor(Math.log2(Math.max(...values))),
  ];
  return Array.from({ length: Math.max(0, high - low + 1) }, (_, i) => 2 ** (low + i));
}

/** Logarithm with ticks at 1, 2 and 5 times each power of ten. */
export function logScale(values) {
  const [low, high] = [Math.log10(Math.min(...values)), Math.log10(Math.max(...values))];
  const room = Math.max(0.06 * (high - low), 0.02);
  const [from, to] = [low - room, high + room];
  const ticks = [];
  for (let decade = Math.floor(from); decade <= to; decade += 1) {
    for (const digit of [1, 2, 5]) {
      const value = digit * 10 ** decade;
      if (Math.log10(value) >= from && Math.log10(value) <= to)
        ticks.push([value, number(value, Math.max(0, -decade))]);
    }
  }
  return { at: (value) => clamp((Math.log10(value) - from) / (to - from)), ticks };
}

/** Linear from zero, or from `from`, with round ticks. */
export function linearScale(values, from = 0) {
  const top = Math.max(...values);
  const step = roundStep((top - from) / 5);
  const to = from + step * Math.ceil((1.04 * (top - from)) / step);
  const decimals = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const ticks = [];
  for (let i = 0; from + i * step <= to + step / 2; i += 1)
    ticks.push([from + i * step, number(from + i * step, decimals)]);
  return { at: (value) => clamp((value - from) / (to - from)), ticks };
}

function roundStep(rough) {
  const decade = 10 ** Math.floor(Math.log10(rough || 1));
  return decade * [1, 2, 5, 10].find((digit) => digit * decade >= rough * 0.999);
}

/** An interval may leave the chart; nothing is drawn far outside. NaN and infinities go to the near edge. */
const clamp = (share) => Math.min(1.02, Math.max(-0.02, share || 0));
