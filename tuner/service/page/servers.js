/** Registered servers with their live state; one server with its autopilot and every move that was made. */

import { get, post, remove } from "./api.js";
import { ask } from "./apply.js";
import { autopilot, auditTable } from "./autopilot.js";
import { confirm } from "./dialog.js";
import { busy, h, keyed, put, replace } from "./dom.js";
import { figure, number, policy, when } from "./format.js";
import { badge, input, state, to } from "./parts.js";
import { follow, known, learn, loaded, refresh } from "./store.js";

const AUTOPILOT = { off: "off", dry_run: "dry run", on: "on" };

/** What a state means, where the service does not say more. */
const STATES = {
  down: "it does not answer",
  lacking: "it lacks what a patched worker reports",
  lying: "it contradicts itself",
};

/** Why a server is not up, as a sentence. */
function trouble(server) {
  const why = server.problem || STATES[server.state] || "";
  const text = server.state === "lying" ? `what it says cannot be true, so its figures are not shown: ${why}` : why;
  return text && `${text[0].toUpperCase()}${text.slice(1)}${text.endsWith(".") ? "" : "."}`;
}

/** The live figures of a server: term -> value. */
const LIVE = {
  batch: (server) => number(server.batch),
  speculation: (server) =>
    server.speculating === null || server.speculating === undefined ? "–" : server.speculating ? "on" : "off",
  threshold: policy,
  "resumes at": (server) => server.resume_at ?? "–",
  switches: (server) => number(server.switches),
  "steps on": (server) => number(server.steps_on),
  "steps off": (server) => number(server.steps_off),
  "accept length": (server) => number(server.accept_len, 2),
  "tokens/s": (server) => figure(server.tok_per_s),
  autopilot: (server) => AUTOPILOT[server.autopilot?.state] ?? "–",
};

/** Show all servers, and the form that registers one. */
export async function servers(root, signal) {
  await loaded();
  if (signal.aborted) return;
  const node = h("div", { class: "cards" });
  const none = h("p", { class: "dim" }, "No server is registered yet.");
  const list = keyed(node, (server) => card(server, true));
  const draw = () => {
    list(
      [...known.server.values()].sort((a, b) => a.name.localeCompare(b.name)).map((server) => [server.name, server]),
    );
    none.hidden = known.server.size > 0;
  };
  replace(root, h("h1", {}, "Servers"), node, none, registerForm());
  follow(["server"], signal, draw);
  draw();
}

/** Show one server. */
export async function server(root, signal, name) {
  await loaded();
  if (signal.aborted) return;
  if (!known.server.has(name)) throw new Error(`No server is registered as ${name}.`);
  const live = card(known.server.get(name), false);
  const pilot = autopilot(name);
  const audit = h("div");
  const drop = h("button", { type: "button", onclick: () => askToDrop(name) }, "Remove from the registry …");
  replace(
    root,
    h("h1", {}, name),
    live.node,
    byHand(name),
    pilot.node,
    h("section", {}, h("h2", {}, "Moves"), audit),
    h(
      "section",
      {},
      h("h2", {}, "Registry"),
      h("p", { class: "dim" }, "Removing it here does nothing to the server itself."),
      drop,
    ),
  );
  let lastMove = null;
  const draw = async (_, changed) => {
    if (changed && changed.name !== name) return;
    const now = known.server.get(name);
    if (!now) return;
    live.update(now);
    pilot.update(now);
    const move = JSON.stringify(now.autopilot?.last_move ?? null);
    if (move === lastMove) return;
    lastMove = move;
    await drawAudit(audit, pilot.node, name, signal);
  };
  follow(["server"], signal, draw);
  await draw("server", null);
}

/** A threshold that a person knows better: the same question and read-back as for a recommendation. */
function byHand(name) {
  const field = input("hand-threshold", "Threshold", {
    type: "number",
    min: 0,
    max: 4096,
    placeholder: "never disable",
  });
  const problem = h("div", { "aria-live": "polite" });
  const form = h("form", { class: "line" }, field.node, h("button", { type: "submit" }, "Set …"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const wanted = field.field.value === "" ? null : Number(field.field.value);
    ask({ threshold: wanted }, { threshold: wanted }, name, problem);
  });
  const meaning = h(
    "p",
    { class: "dim" },
    "The largest decode batch that speculates: 0 never speculates, an empty field never disables.",
  );
  return h("section", {}, h("h2", {}, "Set by hand"), form, meaning, problem);
}

/** The log of moves; a service that has no autopilot says so there, and shows no switch for one. */
async function drawAudit(audit, pilot, name, signal) {
  const { moves } = await get("servers", name, "audit").catch((error) => ({ moves: error }));
  if (signal.aborted) return;
  pilot.hidden = moves.status === 501;
  replace(audit, pilot.hidden ? h("p", { class: "dim" }, moves.message) : auditTable(moves));
}

// ---- a server's card

function card(server, linked) {
  const standing = h("span");
  const version = h("span", { class: "dim" });
  const problem = h("p", { class: "problem" });
  const values = Object.fromEntries(Object.keys(LIVE).map((term) => [term, h("dd")]));
  const busyWith = h("span", { class: "dim" });
  const name = linked ? h("h2", {}, h("a", { href: to("servers", server.name) }, server.name)) : null;
  const node = h(
    "article",
    { class: "card server", "data-server": server.name },
    h("div", { class: "line" }, name, standing, h("code", { class: "dim" }, server.url), version, busyWith),
    problem,
    h(
      "dl",
      { class: "facts live" },
      Object.entries(values).map(([term, value]) => h("div", {}, h("dt", {}, term), value)),
    ),
  );
  return { node, update: (now) => fill(now, { node, standing, version, problem, values, busyWith }) };
}

function fill(server, { node, standing, version, problem, values, busyWith }) {
  node.dataset.state = server.state in STATES || server.state === "up" ? server.state : "";
  const since = server.state === "up" || !server.since_s ? "" : ` since ${when(server.since_s)}`;
  const words = JSON.stringify([server.state, since, server.simulated]);
  if (standing.dataset.words !== words)
    replace(standing, state(server.state), since, " ", badge(server.simulated ? "simulated" : ""));
  standing.dataset.words = words;
  put(version, [server.worker, server.version].filter(Boolean).join(" · "));
  const ungated = server.ungated ? `${number(server.ungated)} steps were not gated.` : "";
  put(problem, [trouble(server), ungated].filter(Boolean).join(" "));
  problem.hidden = !problem.textContent;
  for (const [term, value] of Object.entries(values)) {
    put(value, LIVE[term](server));
    value.parentElement.hidden = server.state !== "up" && value.textContent === "–";
  }
  values.speculation.className = { on: "on", off: "off" }[values.speculation.textContent] ?? "";
  if (busyWith.dataset.job !== String(server.job))
    replace(busyWith, server.job ? ["a ", h("a", { href: to("jobs", server.job) }, "job"), " runs on it"] : []);
  busyWith.dataset.job = String(server.job);
}

// ---- the registry

function registerForm() {
  const name = input("server-name", "Name", { required: true, maxlength: 64 });
  const url = input("server-url", "URL", {
    required: true,
    type: "url",
    placeholder: "http://HOST:30000",
    inputmode: "url",
  });
  const key = input(
    "server-key",
    "Variable with its admin key",
    { pattern: "SPECPIVOT_(ADMIN_)?API_KEY[A-Z0-9_]*", placeholder: "SPECPIVOT_ADMIN_API_KEY" },
    "in the service's environment; only if the server asks for a key",
  );
  const button = h("button", { type: "submit", class: "main" }, "Register");
  const problem = h("div", { "aria-live": "polite" });
  const form = h("form", { class: "line" }, name.node, url.node, key.node, button);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const body = {
      name: name.field.value.trim(),
      url: url.field.value.trim(),
      ...(key.field.value ? { admin_api_key_env: key.field.value } : {}),
    };
    const answer = await busy(button, problem, () => post(["servers"], body));
    if (!answer) return;
    if (answer.name && answer.state) learn("server", answer);
    else await refresh();
    form.reset();
  });
  return h("section", {}, h("h2", {}, "Register a server"), form, problem);
}

function askToDrop(name) {
  confirm({
    title: `Remove ${name}?`,
    body: h("p", {}, "Its autopilot stops. The server itself goes on as it is."),
    verb: `Remove ${name}`,
    grave: true,
    act: async () => {
      await remove("servers", name);
      known.server.delete(name);
      await refresh();
      location.hash = to("servers");
    },
  });
}
