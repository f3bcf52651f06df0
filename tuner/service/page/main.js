/** Start: the login form, the stream of events, and the view that the address names, such as #/runs/NAME. */

import { compare } from "./compare.js";
import { failed, h, put, replace } from "./dom.js";
import { start } from "./dialog.js";
import { job, jobs } from "./jobs.js";
import { progress } from "./format.js";
import { run } from "./run.js";
import { runs } from "./runs.js";
import { server, servers } from "./servers.js";
import { startForm } from "./start.js";
import { connect, follow, link } from "./store.js";

/** First part of the address -> what to show with, and without, a name behind it. */
const VIEWS = {
  runs: { list: runs, one: run, title: "Runs" },
  servers: { list: servers, one: server, title: "Servers" },
  jobs: { list: jobs, one: job, title: "Jobs" },
  compare: { list: compare, one: compare, title: "Compare" },
  start: { list: startForm, one: startForm, title: "Start" },
};

const main = document.getElementById("main");
let shown = new AbortController();

/** The parts of the address behind "#/"; a part that is badly escaped stays as it is. */
function parts() {
  return location.hash
    .slice(2)
    .split("/")
    .filter(Boolean)
    .map((part) => {
      try {
        return decodeURIComponent(part);
      } catch {
        return part;
      }
    });
}

async function route() {
  if (location.hash && !location.hash.startsWith("#/")) return; // the skip link
  const [section = "runs", ...names] = parts();
  const view = VIEWS[section] ?? VIEWS.runs;
  shown.abort();
  shown = new AbortController();
  mark(section);
  document.title = `${names.length ? `${names.join(", ")} · ` : ""}${view.title} · SpecPivot`;
  await show(names.length ? view.one : view.list, names, shown.signal);
}

async function show(view, names, signal) {
  const root = h("div", { class: "view" }, h("p", { class: "dim" }, "Loading …"));
  replace(main, root);
  main.setAttribute("aria-busy", "true");
  try {
    await view(root, signal, ...names);
  } catch (error) {
    if (!signal.aborted) replace(root, failed(error));
  }
  if (signal.aborted) return;
  main.setAttribute("aria-busy", "false");
  focusHeading(root);
}

/** A screen reader and the keyboard start at the heading of the new view; nobody is torn out of a field. */
function focusHeading(root) {
  const heading = root.querySelector("h1");
  if (!heading || root.contains(document.activeElement) || document.querySelector("dialog[open]")) return;
  heading.tabIndex = -1;
  heading.focus({ preventScroll: true });
  scrollTo(0, 0);
}

/** A view that could not be shown is tried again when the service is back, or when what it names has appeared. */
function retry(kind, changed) {
  const failedNow = main.querySelector(".view > .failed:only-child");
  if (failedNow && (kind === "link" ? link.up : changed && parts()[1] === changed.name)) route();
}

function mark(section) {
  for (const anchor of document.querySelectorAll(".bar nav a")) {
    if (anchor.hash === `#/${section}`) anchor.setAttribute("aria-current", "page");
    else anchor.removeAttribute("aria-current");
  }
}

function showLink() {
  const words = { true: "live", false: "not connected", null: "connecting" };
  const element = document.getElementById("link");
  element.className = `link ${link.up ? "up" : "down"}`;
  put(element, words[link.up]);
}

/** Progress is said aloud in tenths, and when a job ends: not at every point. */
function announceJobs(signal) {
  const said = new Map();
  follow(["job"], signal, (_, changed) => {
    if (!changed) return;
    const tenth = changed.points_planned ? Math.floor((10 * changed.points_done) / changed.points_planned) : 0;
    const now = `${changed.state} ${tenth}`;
    const before = said.get(changed.id);
    said.set(changed.id, now);
    if (before === undefined || before === now) return;
    const what = changed.state === "running" ? progress(changed) : changed.state;
    put(document.getElementById("announcer"), `${changed.kind} of ${changed.run}: ${what}`);
  });
}

start();
follow(["link"], new AbortController().signal, showLink);
announceJobs(new AbortController().signal);
follow(["link", "run", "server"], new AbortController().signal, retry);
showLink();
connect();
addEventListener("hashchange", route);
route();
