/** The three charts of a run: throughput, time per output token, and throughput against the speed of one user. */

import { chart } from "./chart.js";
import { h } from "./dom.js";
import { figure, number, span, threshold } from "./format.js";
import { inOrder, look } from "./looks.js";
import { oneOf } from "./parts.js";
import { linearScale, log2Scale, logScale, powersOfTwo } from "./scale.js";

const CONCURRENCY = "concurrency, requests in flight";
const BATCH = "mean decode batch, requests";

/**
 * The charts of a run: {node, update(found)}. While a run goes on they take new points in place, so that a chosen level
 * or axis stays chosen; update returns false where other charts are needed.
 */
export function curves(found) {
  const all = arranged(found);
  if (!all.order.length) return { node: h("p", { class: "dim" }, "No usable point yet."), update: () => false };
  const made = [
    throughput(all),
    fixed("Time per output token", tpot, all),
    fixed("Throughput against user speed", userSpeed, all),
  ];
  const update = (next) => {
    const now = arranged(next);
    if (kind(now) !== kind(all)) return false;
    made.forEach((one) => one?.update(now));
    return true;
  };
  return {
    node: h(
      "div",
      { class: "plots" },
      made.map((one) => one?.node),
    ),
    update,
  };
}

function arranged(found) {
  const order = inOrder(Object.keys(found.variants)).filter((name) => found.variants[name].length);
  return { ...found, order, reference: reference(order) };
}

/** What decides which charts and choices there are. */
const kind = (all) => JSON.stringify([all.order, Boolean(tpot(all)), Boolean(userSpeed(all))]);

/** What others are compared with: stock SGLang where it was measured. */
const reference = (variants) =>
  ["baseline", "baseline_no_overlap", "forced_off"].find((name) => variants.includes(name)) ?? null;

function fixed(title, specify, all) {
  const spec = specify(all);
  if (!spec) return null;
  const made = chart(spec);
  return {
    node: h("figure", {}, h("figcaption", {}, h("h3", {}, title)), made.node),
    update: (now) => made.update(specify(now)),
  };
}

function throughput(first) {
  const chosen = { x: "concurrency", y: "rate" };
  let all = first;
  const made = chart(rates(all, chosen));
  const turn = (axis) => (value) => {
    chosen[axis] = value;
    made.update(rates(all, chosen));
  };
  const x = oneOf(
    "axis-x",
    "against",
    [
      ["concurrency", "concurrency"],
      ["batch", "decode batch"],
    ],
    "concurrency",
    turn("x"),
  );
  const share = all.reference && all.order.length > 1 ? [["share", `relative to ${look(all.reference).label}`]] : [];
  const y = oneOf("axis-y", "in", [["rate", "tokens/s"], ...share], "rate", turn("y"));
  const update = (now) => {
    all = now;
    made.update(rates(all, chosen));
  };
  const head = h("figcaption", {}, h("h3", {}, "Output throughput"), h("div", { class: "choices" }, y.node, x.node));
  return { node: h("figure", { class: "wide" }, head, made.node), update };
}

function rates(all, { x, y }) {
  const base = new Map((all.variants[all.reference] ?? []).map((level) => [level.concurrency, level.tok_per_s]));
  const scale = (level) => (y === "share" ? base.get(level.concurrency) : 1);
  const lines = linesOf(all, (level) => ({
    x: x === "batch" ? level.decode_batch : level.concurrency,
    y: level.tok_per_s / scale(level),
    low: over(level.tok_per_s_low, scale(level)),
    high: over(level.tok_per_s_high, scale(level)),
  }));
  const axis =
    y === "share"
      ? {
          label: `throughput relative to ${look(all.reference).label}`,
          unit: "times",
          say: (value) => number(value, 3),
          scale: linearScale([...values(lines, "y"), 1.1]),
        }
      : {
          label: "output tokens per second",
          unit: "tokens/s",
          say: (value) => figure(value),
          scale: logScale(values(lines, "y")),
        };
  return { ...common(all, "Output throughput"), x: across(lines, x), y: axis, lines, band: band(all, x) };
}

const over = (value, divisor) => (value === null || value === undefined ? null : value / divisor);

function tpot(all) {
  const lines = linesOf(
    all,
    (level) =>
      level.tpot_s && {
        x: level.concurrency,
        y: 1000 * level.tpot_s,
        low: over(level.tpot_s_low, 0.001),
        high: over(level.tpot_s_high, 0.001),
      },
  );
  if (!lines.length) return null;
  const y = {
    label: "milliseconds per token, median request",
    unit: "ms per token",
    say: (value) => figure(value),
    scale: linearScale(values(lines, "y")),
  };
  return {
    ...common(all, "Time per output token"),
    x: across(lines, "concurrency"),
    y,
    lines,
    band: band(all, "concurrency"),
  };
}

function userSpeed(all) {
  const speed = (level) => level.user_tok_per_s ?? (level.tpot_s ? 1 / level.tpot_s : null);
  const lines = linesOf(
    all,
    (level) =>
      speed(level) && { x: speed(level), y: level.tok_per_s, low: level.tok_per_s_low, high: level.tok_per_s_high },
  );
  if (!lines.length) return null;
  const x = { label: "tokens per second, one user (at points: concurrency)", scale: linearScale(values(lines, "x")) };
  // Where both named curves turn upwards they part to these sides.
  const sides = { [all.reference]: "left", eagle3: "right" };
  const named = lines.map((line) => ({ ...line, names: sides[line.variant] }));
  const y = {
    label: "output tokens per second, whole server",
    unit: "tokens/s",
    say: (value) => figure(value),
    scale: logScale(values(lines, "y")),
  };
  return { ...common(all, "Throughput against user speed"), x, y, lines: named, band: null, scatter: true };
}

function common(all, title) {
  const batches = batchOf(all);
  const at = (level) => `concurrency ${level}, decode batch ${figure(batches.get(level))}`;
  return { title, simulated: all.source === "simulated", scatter: false, at };
}

/** Lines of points; what `place` gives nothing for is left out. */
function linesOf(all, place) {
  const lines = all.order.map((variant) => ({
    variant,
    points: all.variants[variant]
      .map((level) => ({ level: level.concurrency, ...(place(level) || { y: NaN }) }))
      .filter((point) => point.x > 0 && point.y > 0 && point.y < Infinity),
  }));
  return lines.filter((line) => line.points.length);
}

const values = (lines, axis) => lines.flatMap((line) => line.points.map((point) => point[axis]));

function across(lines, x) {
  const found = values(lines, "x");
  return x === "batch"
    ? { label: BATCH, scale: log2Scale(found, powersOfTwo(found)) }
    : { label: CONCURRENCY, scale: log2Scale(found, found) };
}

// ---- the pivot

/** Mean decode batch over the variants, by concurrency, smallest first. */
function batchOf(all) {
  const sums = new Map();
  for (const level of all.order.flatMap((variant) => all.variants[variant])) {
    const [sum, count] = sums.get(level.concurrency) ?? [0, 0];
    sums.set(level.concurrency, [sum + (level.decode_batch ?? level.concurrency), count + 1]);
  }
  return new Map([...sums].sort((a, b) => a[0] - b[0]).map(([c, [sum, count]]) => [c, sum / count]));
}

/** Where no level lies on the other side of the pivot. */
const ONE_SIDED = {
  always_on: "no pivot up to the largest level: always pays",
  always_off: "no pivot down to the smallest level: never pays",
};

/** The pivot in units of the x axis. It is known over the decode batch; against concurrency it moves with the load. */
function band(all, x) {
  const { pivot } = all;
  if (!pivot) return null;
  const batches = batchOf(all);
  if (Object.hasOwn(ONE_SIDED, pivot.shape))
    return { words: `${ONE_SIDED[pivot.shape]} (90 %: ${span(pivot.low, pivot.high)})` };
  const place = x === "batch" ? (batch) => batch : (batch) => toConcurrency(batches, batch);
  const [first, last] = [Math.min(...batches.values()), Math.max(...batches.values())];
  return {
    low: place(Math.min(Math.max(pivot.low ?? last, first), last)),
    high: place(Math.min(Math.max(pivot.high ?? last, first), last)),
    line: pivot.threshold ? place(pivot.threshold) : null,
    words: `pivot ${threshold(pivot.threshold)} (90 %: ${span(pivot.low, pivot.high)})`,
  };
}

/** Concurrency at which a decode batch is reached, between measured levels on log2 axes. */
export function toConcurrency(batches, batch) {
  const known = [...batches];
  const after = known.findIndex(([, reached]) => reached >= batch);
  if (after === 0) return known[0][0];
  if (after < 0) return known.at(-1)[0];
  const [[c0, b0], [c1, b1]] = [known[after - 1], known[after]];
  const share = Math.log2(batch / b0) / Math.log2(b1 / b0);
  return 2 ** (Math.log2(c0) + share * (Math.log2(c1) - Math.log2(c0)));
}
