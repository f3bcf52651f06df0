/** Two runs side by side: each point's ratio with its interval, or the reason why they must not be compared. */

import { call, path } from "./api.js";
import { facts, failed, h, replace, s } from "./dom.js";
import { figure, ms, number, shape, span, threshold } from "./format.js";
import { inOrder, look, swatch } from "./looks.js";
import { banner, select, to } from "./parts.js";
import { known, loaded } from "./store.js";

const METRICS = {
  output_tok_per_s: { title: "Output throughput, tokens/s", say: figure, better: 1 },
  tpot_p50_s: { title: "Time per output token, median", say: ms, better: -1 },
};

const BAR = { width: 150, height: 16 };

/** Show the choice of two runs and, where both are chosen, how they differ. */
export async function compare(root, signal, a = "", b = "") {
  await loaded();
  if (signal.aborted) return;
  const names = [...known.run.keys()].sort();
  const options = [["", "choose a run"], ...names.map((name) => [name])];
  const [left, right] = [select("run-a", "Run A", options, a), select("run-b", "Run B", options, b)];
  const go = () => (location.hash = to("compare", ...[left.field.value, right.field.value].filter(Boolean)));
  left.field.addEventListener("change", go);
  right.field.addEventListener("change", go);
  const outcome = h("div", {}, h("p", { class: "dim" }, "Choose two runs. B is shown as a multiple of A."));
  replace(root, h("h1", {}, "Compare two runs"), h("div", { class: "line" }, left.node, right.node), outcome);
  if (!a || !b) return;
  replace(outcome, h("p", { class: "dim" }, "Comparing …"));
  try {
    const found = await call("GET", `${path("compare")}?a=${encodeURIComponent(a)}&b=${encodeURIComponent(b)}`);
    if (!signal.aborted) replace(outcome, shown(found, a, b));
  } catch (error) {
    if (!signal.aborted)
      replace(
        outcome,
        error.status === 409
          ? h("p", { class: "failed", role: "alert" }, `Not comparable. ${error.message}`)
          : failed(error),
      );
  }
}

function shown(found, a, b) {
  const pivots = Object.entries(found.pivots ?? {}).map(([run, pivot]) => [
    run,
    `${threshold(pivot.threshold)}, 90 %: ${span(...pivot.interval)}; ${shape(pivot.shape)}`,
  ]);
  const clear = found.differences.filter((one) => one.clear).length;
  return [
    banner(found.source),
    h(
      "p",
      {},
      h("strong", {}, `${clear} of ${found.differences.length} figures differ clearly`),
      ` (their 95 % interval excludes equality). B is ${b}, A is ${a}.`,
      found.not_shared ? ` ${found.not_shared} points exist in one run only.` : "",
    ),
    pivots.length ? [h("h2", {}, "Pivots"), h("div", { class: "roomy" }, facts(pivots))] : null,
    Object.keys(METRICS).map((metric) =>
      block(
        metric,
        found.differences.filter((one) => one.metric === metric),
      ),
    ),
    found.notes?.length
      ? h(
          "details",
          {},
          h(
            "summary",
            {},
            found.notes.length === 1
              ? "One difference in how they were run"
              : `${found.notes.length} differences in how they were run`,
          ),
          h(
            "ul",
            {},
            found.notes.map((note) => h("li", {}, note)),
          ),
        )
      : null,
  ]
    .flat(3)
    .filter(Boolean);
}

function block(metric, rows) {
  if (!rows.length) return null;
  const reach = Math.max(
    0.02,
    ...rows
      .flatMap((row) => [row.low, row.ratio, row.high])
      .filter(Boolean)
      .map((ratio) => Math.min(Math.abs(Math.log(ratio)), Math.LN2)),
  );
  const order = inOrder(new Set(rows.map((row) => row.variant)));
  const sorted = [...rows].sort(
    (x, y) => order.indexOf(x.variant) - order.indexOf(y.variant) || x.concurrency - y.concurrency,
  );
  return [
    h("h2", {}, METRICS[metric].title),
    h(
      "div",
      { class: "scroll", role: "region", "aria-label": METRICS[metric].title, tabindex: 0 },
      h(
        "table",
        { class: "ratios" },
        head(reach),
        h(
          "tbody",
          {},
          sorted.map((row) => line(row, METRICS[metric], reach)),
        ),
      ),
    ),
  ];
}

function head(reach) {
  const ends = `B / A, ${number(Math.exp(-reach), 2)} to ${number(Math.exp(reach), 2)}`;
  return h(
    "thead",
    {},
    h(
      "tr",
      {},
      h("th", { scope: "col" }, "variant"),
      ["C", "A", "B", "B / A", "95 % interval"].map((name) => h("th", { scope: "col", class: "number" }, name)),
      h("th", { scope: "col" }, ends),
    ),
  );
}

function line(row, metric, reach) {
  const good = Math.sign(Math.log(row.ratio)) * metric.better > 0;
  const verdict = row.clear ? (good ? "better" : "worse") : "same";
  return h(
    "tr",
    { class: verdict },
    h("th", { scope: "row" }, swatch(row.variant), " ", look(row.variant).label),
    [
      row.concurrency,
      metric.say(row.a),
      metric.say(row.b),
      number(row.ratio, 3),
      row.low === null ? "not repeated" : `${number(row.low, 3)} to ${number(row.high, 3)}`,
    ].map((cell) => h("td", { class: "number" }, cell)),
    h("td", {}, bar(row, reach), h("span", { class: "verdict-word" }, row.clear ? ` ${verdict}` : "")),
  );
}

/** The ratio and its interval on a log axis with 1 in the middle. */
function bar(row, reach) {
  const { width, height } = BAR;
  const x = (ratio) => Math.min(width, Math.max(0, width / 2 + (Math.log(ratio) / reach) * (width / 2 - 6)));
  const y = height / 2;
  return s(
    "svg",
    { class: "ratio", viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" },
    s("path", { class: "one", d: `M${width / 2} 0V${height}` }),
    row.low === null ? null : s("path", { class: "range", d: `M${x(row.low)} ${y}H${x(row.high)}` }),
    s("circle", { cx: x(row.ratio), cy: y, r: 3.5 }),
  );
}
