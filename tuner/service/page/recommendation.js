/** What a run recommends: the answer in words, how sure it is, what was rejected, and the ways to use it. */

import { get, post } from "./api.js";
import { applyForm } from "./apply.js";
import { busy, facts, failed, h } from "./dom.js";
import { exportForm } from "./exports.js";
import { ms, number, percent, shape, span, threshold } from "./format.js";

const KEYS = ["recommended", "confidence", "rejected", "would_change"];

/**
 * The recommendation of a run, or the button that works it out, as nodes; null where nothing changed.
 *
 * @param shown what is there already, by part of the view
 * @param draw draws the view again
 */
export async function recommendation(name, shown, signal, draw) {
  const found = await get("runs", name, "recommendation").catch((error) => error);
  const text = found instanceof Error ? found.message : JSON.stringify(found);
  if (shown.recommendation === text) return null;
  shown.recommendation = text;
  if (!(found instanceof Error))
    return [answer(found), await use(name, found, signal), afresh("Work it out again", name, draw)];
  if (found.status !== 404) return [failed(found)];
  return [h("p", { class: "dim" }, "No recommendation yet."), afresh("Work out the recommendation", name, draw)];
}

/** The sentences by what they say; a service may give them as a list in that order. */
export function sentences(words) {
  if (!words) return {};
  if (!Array.isArray(words)) return words;
  return { ...Object.fromEntries(KEYS.map((key, i) => [key, words[i]])), rest: words.slice(KEYS.length) };
}

function answer(found) {
  const said = sentences(found.words);
  return h(
    "div",
    { class: "answer" },
    h("p", { class: "verdict" }, together(said.recommended ?? `Threshold: ${threshold(found.threshold)}.`)),
    said.confidence ? h("p", { class: "confidence" }, together(said.confidence)) : null,
    figures(found),
    paragraph("Rejected.", said.rejected),
    paragraph("What would change it.", said.would_change),
    (said.rest ?? []).map((text) => h("p", {}, together(text))),
    found.warnings?.length
      ? h(
          "ul",
          { class: "warnings", "aria-label": "Mind" },
          found.warnings.map((text) => h("li", {}, text)),
        )
      : null,
  );
}

const paragraph = (head, text) => (text ? h("p", {}, h("strong", {}, head), " ", together(text)) : null);

/** A figure and its percent sign stay on one line. */
const together = (text) => String(text).replaceAll(" %", "\u00a0%");

/** The ends of an interval of shares, in percent. */
const shares = (ends) => (ends ?? []).map((share) => number(100 * share, 1)).join(" to ");

function figures(found) {
  const [low, high] = found.interval ?? [null, null];
  const latency = found.latency_c1;
  const rows = [
    ["largest decode batch that speculates", threshold(found.threshold)],
    ["90 % interval", span(low, high)],
    ["shape", shape(found.shape)],
    ["of the better of on and off, score", `${percent(found.score)} (${shares(found.score_interval)})`],
  ];
  if (found.threshold)
    rows.push(["resumes at, stays off at least", `${found.resume_at}, ${number(found.min_dwell_steps)} steps`]);
  if (found.threshold && found.effective_threshold !== found.threshold)
    rows.push(["in effect on the measured server", threshold(found.effective_threshold)]);
  if (latency?.eagle3_s)
    rows.push([
      `lone user's time per token (limit +${percent(latency.slack, 0)})`,
      `${ms(latency.at_threshold_s)}, static ${ms(latency.eagle3_s)}${latency.ok ? "" : ": too slow"}`,
    ]);
  return facts(rows);
}

async function use(name, found, signal) {
  return h("div", { class: "use" }, applyForm(name, found, signal), await exportForm(name));
}

function afresh(words, name, draw) {
  const problem = h("div", { "aria-live": "polite" });
  const button = h("button", { type: "button" }, words);
  button.addEventListener("click", async () => {
    const done = await busy(button, problem, () => post(["runs", name, "recommendation"]));
    if (done) await draw();
  });
  return h("div", { class: "afresh" }, button, problem);
}
