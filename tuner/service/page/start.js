/** Start a sweep or a tuning: on simulated servers or on a registered one. */

import { get, post } from "./api.js";
import { busy, h, put, replace } from "./dom.js";
import { taken } from "./jobs.js";
import { input, oneOf, select, to } from "./parts.js";
import { known, loaded } from "./store.js";

/** Options of a job: name, label, hint, which kind has it ("" both), type. */
const OPTIONS = [
  ["concurrency", "Concurrency", "comma-separated, by default 1 to 256", "", "numbers"],
  ["variants", "Variants", "comma-separated, by default all that can be measured", "sweep", "words"],
  ["repeats", "Repeats", "of each point", "sweep", "number"],
  ["duration", "Seconds per point", "measuring window", "", "number"],
  ["warmup", "Warm-up", "seconds of load before each window", "", "number"],
  ["input_tokens", "Prompt tokens", "per request", "", "number"],
  ["output_tokens", "Generated tokens", "per request", "", "number"],
  ["budget", "Budget", "such as 20m", "tune", "text"],
  ["trials", "Trials", "most thresholds to try live", "tune", "number"],
  ["context_lengths", "Context lengths", "two or three prompt lengths, such as 128, 2048", "tune", "numbers"],
  ["latency_slack", "Latency slack", "how much slower a lone user may become, such as 5%", "tune", "text"],
];

const USUAL_PRESET = "h200-llama31-8b-illustrative";

/** Show the form. */
export async function startForm(root, signal) {
  const [presets] = await Promise.all([get("presets").catch(() => ({ presets: [] })), loaded()]);
  if (signal.aborted) return;
  const fields = optionFields();
  const kind = oneOf(
    "kind",
    "What",
    [
      ["sweep", "sweep: measure the curves"],
      ["tune", "tuning: find the threshold"],
    ],
    "sweep",
    (value) => fields.show(value),
  );
  const where = target(presets);
  const run = input(
    "run-name",
    "Name of the run",
    { maxlength: 100, pattern: "[A-Za-z0-9][A-Za-z0-9._\\-]*" },
    "letters, digits, dots and dashes; empty: by the time",
  );
  const button = h("button", { type: "submit", class: "main" }, "Start");
  const problem = h("div", { "aria-live": "polite" });
  const form = h(
    "form",
    { class: "start" },
    kind.node,
    where.node,
    run.node,
    fields.node,
    h("div", { class: "actions" }, button),
    problem,
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const body = {
      kind: kind.value(),
      ...where.value(),
      ...(run.field.value ? { run: run.field.value } : {}),
      options: fields.value(kind.value()),
    };
    const answer = await busy(button, problem, () => post(["jobs"], body));
    if (!answer) return;
    taken(answer);
    location.hash = to("jobs", (answer.job ?? answer).id);
  });
  replace(root, h("h1", {}, "Start a sweep or a tuning"), form);
  fields.show("sweep");
}

/** Simulated servers or a registered one. */
function target({ presets, default: usual }) {
  const servers = [...known.server.values()].filter((server) => server.state === "up");
  const preset = presets.length
    ? select(
        "preset",
        "Preset",
        presets.map((name) => [name]),
        usual,
      )
    : input("preset", "Preset", { required: true, value: USUAL_PRESET });
  const server = select(
    "server",
    "Server",
    servers.map((one) => [one.name, one.job ? `${one.name} (job ${one.job} runs on it)` : one.name, Boolean(one.job)]),
  );
  const note = h("p", { class: "dim" });
  const turn = (value) => {
    preset.node.hidden = value !== "sim";
    server.node.hidden = value === "sim";
    preset.field.disabled = value !== "sim";
    put(
      note,
      value === "sim"
        ? "Simulated servers replay step times: nothing is measured, and every result says so."
        : "Full load goes to this server until the job ends: not one that serves people.",
    );
  };
  const choices = [["sim", "simulated servers"], ...(servers.length ? [["server", "a registered server"]] : [])];
  const on = oneOf("target", "On", choices, "sim", turn);
  turn("sim");
  const value = () => (on.value() === "sim" ? { sim: preset.field.value } : { server: server.field.value });
  return { node: h("div", { class: "target" }, on.node, preset.node, server.node, note), value };
}

function optionFields() {
  const made = OPTIONS.map(([name, label, hint, kind, type]) => ({
    name,
    kind,
    type,
    ...input(`option-${name}`, label, type === "number" ? { type, min: 0, step: "any" } : {}, hint),
  }));
  const applies = (option, kind) => option.kind === "" || option.kind === kind;
  const show = (kind) => made.forEach((option) => (option.node.hidden = !applies(option, kind)));
  const value = (kind) =>
    Object.fromEntries(
      made
        .filter((option) => applies(option, kind) && option.field.value !== "")
        .map((option) => [option.name, parsed(option.type, option.field.value)]),
    );
  return {
    node: h(
      "fieldset",
      { class: "options" },
      h("legend", {}, "Options, empty for the usual"),
      made.map((option) => option.node),
    ),
    show,
    value,
  };
}

/** What a person typed, as the service wants it. */
function parsed(type, text) {
  const words = text.split(/[\s,]+/).filter(Boolean);
  return { number: () => Number(text), numbers: () => words.map(Number), words: () => words, text: () => text.trim() }[
    type
  ]();
}
