/** The autopilot of a server: off, dry run or on, within bounds; and the log of its moves. */

import { post } from "./api.js";
import { confirm } from "./dialog.js";
import { busy, failed, h, put, replace, table } from "./dom.js";
import { moment, span, threshold } from "./format.js";
import { input, oneOf } from "./parts.js";
import { known, learn } from "./store.js";

const MODES = [
  ["off", "off"],
  ["dry_run", "dry run"],
  ["on", "on"],
];
const MEANING = {
  off: "The threshold stays where it was set.",
  dry_run: "It watches the live traffic and logs what it would do. Nothing is changed.",
  on: "It moves the threshold within the bounds, when the evidence exceeds the noise.",
};

/** The switch and the bounds: {node, update(server)}. What a person is editing is not overwritten. */
export function autopilot(name) {
  const meaning = h("p", { class: "dim" });
  const last = h("p");
  const mode = oneOf("autopilot", "Mode", MODES, "off", (value) => put(meaning, MEANING[value]));
  const low = input("bound-low", "Lowest threshold", { type: "number", min: 0, max: 4096, required: true });
  const high = input("bound-high", "Highest threshold", { type: "number", min: 0, max: 4096, placeholder: "no limit" });
  const button = h("button", { type: "submit", class: "main" }, "Set");
  const problem = h("div", { "aria-live": "polite" });
  const form = h("form", { class: "line" }, mode.node, low.node, high.node, button);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const wanted = {
      state: mode.value(),
      bounds: [Number(low.field.value), high.field.value === "" ? null : Number(high.field.value)],
    };
    submit(name, wanted, button, problem);
  });
  const seen = { text: null };
  const update = (server) => {
    const now = server.autopilot ?? { state: "off", bounds: null };
    const text = JSON.stringify([now.state, now.bounds]);
    if (text !== seen.text) show(now, { mode, low, high, meaning });
    seen.text = text;
    put(last, lastMove(now.last_move));
  };
  return { node: h("section", {}, h("h2", {}, "Autopilot"), form, meaning, problem, last), update };
}

function show(now, { mode, low, high, meaning }) {
  mode.set(now.state);
  put(meaning, MEANING[now.state] ?? "");
  low.field.value = now.bounds?.[0] ?? 0;
  high.field.value = now.bounds?.[1] ?? "";
}

function submit(name, wanted, button, problem) {
  const [low, high] = wanted.bounds;
  if (high !== null && low > high)
    return replace(problem, failed(new Error("The lowest threshold lies above the highest.")));
  const set = async () => {
    const answer = await post(["servers", name, "autopilot"], wanted);
    if (answer?.name === name) learn("server", answer);
  };
  if (wanted.state !== "on") return busy(button, problem, set);
  replace(problem);
  return confirm({
    title: `Let the autopilot set ${name}?`,
    body: [
      h(
        "p",
        {},
        `It will move the threshold between ${low} and ${high ?? "never disabling"} on live traffic, by itself.`,
      ),
      h("p", {}, `Now: threshold ${threshold(known.server.get(name)?.threshold)}.`),
    ],
    verb: "Switch it on",
    act: set,
  });
}

const lastMove = (move) =>
  move
    ? `Last move: ${threshold(move.from)} → ${threshold(move.to)} at ${moment(move.at_s)}: ${move.reason}`
    : "It has not moved yet.";

/** The audit log, latest first; `moves` may be the error that came in its place. */
export function auditTable(moves) {
  if (moves instanceof Error) return failed(moves);
  if (!moves.length) return h("p", { class: "dim" }, "No moves yet.");
  const rows = [...moves]
    .sort((a, b) => b.at_s - a.at_s)
    .map((move) => [
      moment(move.at_s),
      `${threshold(move.from)} → ${threshold(move.to)}`,
      move.interval ? span(move.interval[0], move.interval[1]) : "–",
      move.dry_run ? "dry run: not done" : "done",
      move.reason,
    ]);
  return table("Moves", ["at", "threshold", "90 % interval", "", "reason"], rows);
}
