/** Jobs: what runs with its progress, what ended and how, the log; cancel and resume. */

import { call, get, path, post } from "./api.js";
import { confirm } from "./dialog.js";
import { busy, facts, h, keyed, put, replace } from "./dom.js";
import { duration, progress, when } from "./format.js";
import { state, to } from "./parts.js";
import { follow, known, learn, loaded } from "./store.js";

const LINES = 300;

/** Cards of the jobs that `wanted` picks, latest first: {node, draw}. */
export function jobCards(wanted) {
  const node = h("div", { class: "cards jobs" });
  const list = keyed(node, card);
  const draw = () =>
    list(
      [...known.job.values()]
        .filter(wanted)
        .sort((a, b) => b.created_s - a.created_s)
        .map((job) => [job.id, job]),
    );
  return { node, draw };
}

function card(job) {
  const bar = h("progress", { "aria-label": `Progress of ${job.run ?? job.id}` });
  const words = h("span", { class: "progress-words" });
  const standing = h("span");
  const message = h("p", { class: "message" });
  const doing = actions(job.id);
  const node = h(
    "article",
    { class: "card job", "data-job": job.id },
    h(
      "div",
      { class: "line" },
      h("strong", {}, h("a", { href: to("jobs", job.id) }, `${job.kind} of ${job.run ?? "a new run"}`)),
      standing,
      h("span", { class: "dim" }, target(job)),
      doing.node,
    ),
    h("div", { class: "line" }, bar, words),
    message,
  );
  return { node, update: (now) => fill(now, { bar, words, standing, message, doing }) };
}

/** What a job works on. */
const target = (job) =>
  !job.server || job.server.startsWith("sim:")
    ? `on simulated servers ${(job.server ?? "").slice(4)}`
    : `on ${job.server}`;

function fill(job, { bar, words, standing, message, doing }) {
  replace(standing, state(job.state));
  put(words, progress(job));
  put(message, job.message ?? "");
  message.hidden = !job.message;
  bar.hidden = job.state !== "running";
  if (job.points_planned) {
    bar.max = job.points_planned;
    bar.value = job.points_done ?? 0;
  } else bar.removeAttribute("value");
  doing.update(job);
}

/** Cancel while it runs, resume where that is possible. */
function actions(id) {
  const problem = h("span", { "aria-live": "polite" });
  const cancel = h("button", { type: "button" }, "Cancel …");
  const resume = h("button", { type: "button" }, "Resume");
  cancel.addEventListener("click", () =>
    confirm({
      title: `Cancel ${known.job.get(id)?.run ?? id}?`,
      body: h("p", {}, "What was measured so far is kept, and the run can be resumed."),
      verb: "Cancel the job",
      grave: true,
      act: async () => taken(await post(["jobs", id, "cancel"])),
    }),
  );
  resume.addEventListener("click", () => busy(resume, problem, async () => taken(await post(["jobs", id, "resume"]))));
  const update = (job) => {
    cancel.hidden = job.state !== "running";
    resume.hidden = job.state === "running" || !job.resumable;
  };
  return { node: h("span", { class: "actions" }, problem, cancel, resume), update };
}

/** Answers carry the job, bare or under its name; the store then need not wait for the event. */
export function taken(answer) {
  const job = answer?.job ?? answer;
  if (job?.id && job.state) learn("job", job);
}

/** Show all jobs. */
export async function jobs(root, signal) {
  await loaded();
  if (signal.aborted) return;
  const [running, ended] = [jobCards((job) => job.state === "running"), jobCards((job) => job.state !== "running")];
  const none = h("p", { class: "dim" }, "Nothing was started from here yet.");
  replace(
    root,
    h(
      "div",
      { class: "head" },
      h("h1", {}, "Jobs"),
      h("a", { class: "button", href: to("start") }, "Start a sweep or a tuning"),
    ),
    running.node,
    ended.node,
    none,
  );
  const draw = () => {
    running.draw();
    ended.draw();
    none.hidden = known.job.size > 0;
  };
  follow(["job"], signal, draw);
  draw();
}

/** Show one job with its log. */
export async function job(root, signal, id) {
  const [found] = await Promise.all([get("jobs", id), loaded()]);
  if (signal.aborted) return;
  taken(found);
  const about = h("div");
  const log = h("pre", { class: "log", tabindex: 0, "aria-label": "Log" });
  const cards = jobCards((one) => one.id === id);
  replace(root, h("h1", {}, `Job ${id}`), cards.node, about, h("h2", {}, "Log"), log);
  const draw = async (_, changed) => {
    if (changed && changed.id !== id) return;
    cards.draw();
    times(about, known.job.get(id));
    await tail(log, id, signal);
  };
  follow(["job"], signal, draw);
  await draw("job", null);
}

function times(about, job) {
  if (!job) return;
  const took = job.started_s && job.ended_s ? duration(job.ended_s - job.started_s) : null;
  replace(
    about,
    facts([
      ["run", job.run ? h("a", { href: to("runs", job.run) }, job.run) : "–"],
      ["started", when(job.started_s)],
      ["ended", when(job.ended_s)],
      ["took", took ?? "–"],
      ["exit code", job.exit_code ?? "–"],
    ]),
  );
}

/** The end of the log; a reader who scrolled up stays where they are. */
async function tail(log, id, signal) {
  const { lines } = await call("GET", `${path("jobs", id, "log")}?tail=${LINES}`).catch((error) => ({
    lines: [error.message],
  }));
  if (signal.aborted) return;
  const follows = log.scrollTop + log.clientHeight >= log.scrollHeight - 30;
  put(log, lines.join("\n"));
  if (follows) log.scrollTop = log.scrollHeight;
}
