/** All runs: what is running now with its progress, then every run with what came of it. */

import { h, keyed, put, replace } from "./dom.js";
import { shape, threshold, when } from "./format.js";
import { jobCards } from "./jobs.js";
import { follow, known, loaded } from "./store.js";
import { badge, to } from "./parts.js";

/** Show the list of runs. */
export async function runs(root, signal) {
  await loaded();
  if (signal.aborted) return;
  const filter = h("input", { id: "filter", type: "search", placeholder: "name", autocomplete: "off" });
  const body = h("tbody");
  const none = h("p", { class: "dim" });
  const list = keyed(body, row);
  const running = jobCards((job) => job.state === "running");
  const draw = () => {
    const wanted = filter.value.trim().toLowerCase();
    const items = [...known.run.values()].filter((run) => run.name.toLowerCase().includes(wanted));
    items.sort((a, b) => (b.created_s ?? 0) - (a.created_s ?? 0) || a.name.localeCompare(b.name));
    list(items.map((run) => [run.name, run]));
    none.hidden = items.length > 0;
    put(
      none,
      known.run.size ? "No run has such a name." : "No runs yet. Start a sweep: simulated servers need no GPU.",
    );
    running.draw();
  };
  filter.addEventListener("input", draw);
  replace(
    root,
    h(
      "div",
      { class: "head" },
      h("h1", {}, "Runs"),
      h("a", { class: "button", href: to("start") }, "Start a sweep or a tuning"),
    ),
    running.node,
    h("p", { class: "filter" }, h("label", { for: "filter" }, "Filter "), filter),
    h(
      "div",
      { class: "scroll", role: "region", "aria-label": "Runs", tabindex: 0 },
      h("table", { class: "runs" }, head(), body),
    ),
    none,
  );
  follow(["run", "job"], signal, draw);
  draw();
}

function head() {
  const names = ["run", "threshold", "speculation", "points", "usable", "started", "variants"];
  const numbers = new Set(["points", "usable", "threshold"]);
  return h(
    "thead",
    {},
    h(
      "tr",
      {},
      names.map((name) => h("th", { scope: "col", class: numbers.has(name) ? "number" : null }, name)),
    ),
  );
}

function row(run) {
  const source = h("span");
  const cells = Object.fromEntries(
    ["threshold", "shape", "points", "usable", "started", "variants"].map((name) => [name, h("td")]),
  );
  for (const name of ["points", "usable", "threshold"]) cells[name].className = "number";
  const name = h("th", { scope: "row" }, h("a", { href: to("runs", run.name) }, run.name), " ", source);
  return { node: h("tr", {}, name, Object.values(cells)), update: (now) => fill(now, source, cells) };
}

function fill(run, source, cells) {
  replace(source, badge(run.source));
  put(cells.started, when(run.created_s));
  put(cells.variants, (run.variants ?? []).join(", "));
  put(cells.points, run.points_planned ? `${run.points_done} of ${run.points_planned}` : run.points_done);
  put(cells.usable, run.usable ?? "");
  put(cells.threshold, run.shape || run.has_recommendation ? threshold(run.threshold) : "");
  put(cells.shape, shape(run.shape));
}
