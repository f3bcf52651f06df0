/** One run: the answer first, then curves, levels, and what is needed to judge and repeat it. */

import { get, path } from "./api.js";
import { curves } from "./curves.js";
import { facts, failed, h, put, replace, table } from "./dom.js";
import { duration, figure, ms, number, when } from "./format.js";
import { jobCards } from "./jobs.js";
import { inOrder, look } from "./looks.js";
import { badge, banner, to } from "./parts.js";
import { recommendation } from "./recommendation.js";
import { follow, known, loaded } from "./store.js";

/** Show a run. */
export async function run(root, signal, name) {
  const [found] = await Promise.all([get("runs", name), loaded()]);
  if (signal.aborted) return;
  const points = h("span");
  const running = jobCards((job) => job.run === name && job.state === "running");
  const parts = {
    answer: h("section", { "aria-label": "Recommendation" }),
    curves: h("section", { "aria-label": "Curves" }),
    levels: h("section", { "aria-label": "Points" }),
  };
  replace(
    root,
    h("div", { class: "head" }, h("h1", {}, name, " ", badge(found.source)), links(name)),
    banner(found.source),
    about(found, points),
    running.node,
    parts.answer,
    parts.curves,
    parts.levels,
    measured(found),
  );
  const shown = {};
  const draw = () => drawRun(name, parts, points, shown, signal, draw);
  follow(["job"], signal, running.draw);
  follow(
    ["run"],
    signal,
    onceAtATime((kind, changed) => (!changed || changed.name === name ? draw() : null)),
  );
  running.draw();
  await draw();
}

/** Events that come while an answer is awaited are served by one more fetch behind it. */
function onceAtATime(work) {
  let busy = false;
  let again = false;
  return async (...args) => {
    again = true;
    if (busy) return;
    busy = true;
    while (again) {
      again = false;
      await Promise.resolve(work(...args)).catch(() => {});
    }
    busy = false;
  };
}

/** Draw what changed; `shown` remembers what is there, because a view that is built anew loses what a reader chose. */
async function drawRun(name, parts, points, shown, signal, draw) {
  // All is there before anything is drawn: what comes later would push away what a reader is about to click.
  const [rows, lines, advice] = await Promise.allSettled([
    get("runs", name, "levels"),
    get("runs", name, "curves"),
    recommendation(name, shown, signal, draw),
  ]);
  if (signal.aborted) return;
  if (advice.value) replace(parts.answer, advice.value);
  const summary = known.run.get(name);
  put(
    points,
    summary ? `${summary.points_done} of ${summary.points_planned ?? "?"} points, ${summary.usable ?? "?"} usable` : "",
  );
  if (lines.reason) replace(parts.curves, h("h2", {}, "Curves"), failed(lines.reason));
  else if (changed(shown, "curves", lines.value) && !shown.charts?.update(lines.value)) {
    shown.charts = curves(lines.value);
    replace(parts.curves, h("h2", {}, "Curves"), shown.charts.node);
  }
  if (rows.value && changed(shown, "levels", rows.value)) {
    const open = parts.levels.querySelector("details")?.open ?? false;
    replace(parts.levels, ...levelTable(rows.value.levels, open));
  }
}

function changed(shown, part, value) {
  const text = JSON.stringify(value);
  const differs = shown[part] !== text;
  shown[part] = text;
  return differs;
}

function links(name) {
  return h(
    "nav",
    { class: "links", "aria-label": "This run" },
    h("a", { href: path("runs", name, "report"), target: "_blank", rel: "noopener" }, "Report"),
    h("a", { href: to("compare", name) }, "Compare with …"),
  );
}

function about(found, points) {
  const gpus = (found.environment?.gpus ?? []).map((gpu) => gpu?.name);
  const packages = found.environment?.packages ?? {};
  const what = [
    [...new Set(gpus)].map((gpu) => `${gpus.filter((one) => one === gpu).length} × ${gpu}`).join(", ") || null,
    packages.sglang ? `SGLang ${packages.sglang}` : null,
    when(found.created_s),
  ];
  return h(
    "p",
    { class: "dim about" },
    what.filter(Boolean).map((text) => h("span", {}, text)),
    points,
  );
}

// ---- points

function levelTable(rows, open) {
  const usable = rows.filter(isUsable).length;
  const heads = [
    "variant",
    "#C",
    "#repeat",
    "#decode batch",
    "#tokens/s",
    "#tpot p50",
    "#ttft p50",
    "#accept length",
    "verdict",
    "remarks",
  ];
  const order = inOrder(new Set(rows.map((row) => row.variant)));
  const sorted = [...rows].sort(
    (a, b) =>
      order.indexOf(a.variant) - order.indexOf(b.variant) || a.concurrency - b.concurrency || a.repeat - b.repeat,
  );
  const made = table("Points", heads, sorted.map(pointCells));
  [...made.querySelectorAll("tbody tr")].forEach((line, i) => line.classList.toggle("bad", !isUsable(sorted[i])));
  return [
    h("h2", {}, "Points"),
    h(
      "details",
      { open },
      h(
        "summary",
        {},
        `${rows.length} points, ${usable} usable`,
        usable < rows.length ? `, ${rows.length - usable} left out with a reason` : "",
      ),
      made,
    ),
  ];
}

const isUsable = (row) => row.status === "done" && (row.verdict === "ok" || !row.verdict);

const pointCells = (row) => [
  look(row.variant).label,
  row.concurrency,
  row.repeat,
  number(row.decode_batch_mean, 1),
  figure(row.output_tok_per_s),
  ms(row.tpot_p50_s),
  ms(row.ttft_p50_s),
  number(row.accept_len, 2),
  row.status === "done" ? row.verdict || "ok" : `${row.status}: ${row.verdict}`,
  row.flags ?? "",
];

// ---- how it was measured

function measured(found) {
  const { settings = {}, servers = {}, variants = {}, warnings = [] } = found;
  const notRun = inOrder(Object.keys(variants))
    .filter((name) => variants[name]?.not_run)
    .map((name) => h("p", {}, h("strong", {}, `${look(name).label} was not run: `), variants[name].not_run));
  return h(
    "section",
    { "aria-label": "How it was measured" },
    h("h2", {}, "How it was measured"),
    warnings.length
      ? h(
          "ul",
          { class: "warnings" },
          warnings.map((text) => h("li", {}, text)),
        )
      : null,
    notRun,
    h("details", {}, h("summary", {}, "Settings"), facts(listed(settings))),
    h("details", {}, h("summary", {}, "Machine"), facts(listed(found.environment ?? {}))),
    Object.entries(servers).map(([id, server]) =>
      h("details", {}, h("summary", {}, `Server ${id}`), facts(listed(server ?? {}))),
    ),
  );
}

const listed = (record) =>
  Object.entries(record)
    .filter(([, value]) => value !== null && value !== "")
    .map(([name, value]) => [named(name), said(name, value)]);

const named = (name) => name.replace(/_s$/, "").replaceAll("_", " ");

/** A value without brackets: lists with commas, mappings as "name value". */
function said(name, value) {
  if (Array.isArray(value)) return value.map((item) => said("", item)).join(name === "arguments" ? " " : ", ");
  if (value !== null && typeof value === "object")
    return Object.entries(value)
      .map(([key, item]) => `${key} ${said(key, item)}`)
      .join(", ");
  return name.endsWith("_s") && typeof value === "number" && !name.startsWith("created")
    ? duration(value)
    : String(value);
}
