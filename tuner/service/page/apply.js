/** Apply a recommendation to a live server: choose it, read what will change, confirm, see what it reads back. */

import { get, post } from "./api.js";
import { facts, h, replace } from "./dom.js";
import { confirm } from "./dialog.js";
import { policy, threshold } from "./format.js";
import { select, state } from "./parts.js";
import { follow, known } from "./store.js";

/** The choice of a server, which follows the registry until `signal` ends, and the button. */
export function applyForm(run, found, signal) {
  const { node, field } = select("apply-server", "Server", []);
  const problem = h("div", { "aria-live": "polite" });
  const none = h(
    "p",
    { class: "dim" },
    "No server is registered: add one under ",
    h("a", { href: "#/servers" }, "Servers"),
    ".",
  );
  const button = h("button", { type: "button", class: "main" }, "Apply …");
  const line = h("div", { class: "line" }, node, button);
  const draw = () => {
    none.hidden = known.server.size > 0;
    line.hidden = !none.hidden;
    offer(field);
    button.disabled = !field.value;
  };
  button.addEventListener("click", () => ask({ run }, found, field.value, problem));
  follow(["server"], signal, draw);
  draw();
  return h("div", { class: "apply" }, h("h3", {}, "Apply to a live server"), line, none, problem);
}

/** Offer every server; one that is not up is named with its state, and cannot be chosen. */
function offer(field) {
  const servers = [...known.server.values()].sort((a, b) => a.name.localeCompare(b.name));
  const offered = JSON.stringify(servers.map((server) => [server.name, server.state]));
  if (field.dataset.offered === offered) return;
  field.dataset.offered = offered;
  const chosen = field.value;
  replace(
    field,
    servers.map(({ name, state: now }) =>
      h(
        "option",
        { value: name, disabled: now !== "up", selected: now === "up" && name === chosen },
        now === "up" ? name : `${name} (${now})`,
      ),
    ),
  );
}

/**
 * Ask before a policy is set on a server, then set it and show what the server reads back.
 *
 * @param body what the service is asked for: {run} or {threshold}
 * @param found the policy that this means, as in a recommendation
 */
export async function ask(body, found, name, problem) {
  replace(problem);
  // The dialog states the value of now, not of when this view was drawn.
  const { servers } = await get("servers").catch(() => ({ servers: [...known.server.values()] }));
  const server = servers.find((one) => one.name === name);
  if (!server) return replace(problem, h("p", { class: "failed", role: "alert" }, `${name} is no longer registered.`));
  return confirm({
    title: `Change ${name}?`,
    body: [
      changes(server, found),
      h("p", {}, `It takes effect at once, on live traffic at ${server.url}.`),
      simulatedWarning(found),
    ],
    verb: `Apply to ${name}`,
    act: async () => outcome(name, await post(["servers", name, "apply"], body)),
  });
}

function simulatedWarning(found) {
  return found.source === "simulated"
    ? h(
        "p",
        { class: "banner" },
        h("strong", {}, "SIMULATED."),
        " This recommendation was not measured on any real server.",
      )
    : null;
}

function changes(server, found) {
  const rows = [["threshold", policy(server), threshold(found.threshold)]];
  if (found.threshold && found.resume_at !== undefined) {
    rows.push(["resumes at", String(server.resume_at ?? "–"), String(found.resume_at)]);
    rows.push(["stays off at least", steps(server.min_dwell), steps(found.min_dwell_steps)]);
  }
  return h(
    "table",
    { class: "changes" },
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        ["", "now", "new"].map((head) => h("th", { scope: "col" }, head)),
      ),
    ),
    h(
      "tbody",
      {},
      rows.map(([what, old, new_]) =>
        h("tr", {}, h("th", { scope: "row" }, what), h("td", { class: "old" }, old), h("td", { class: "new" }, new_)),
      ),
    ),
  );
}

const steps = (count) => (count === null || count === undefined ? "–" : `${count} steps`);

/** What the server says of itself after the change. */
function outcome(name, { read_back: back, agrees }) {
  const verdict = agrees
    ? h("p", { class: "good" }, state("agrees", "Agrees."), ` ${name} reads back what was asked.`)
    : h(
        "p",
        { class: "failed" },
        state("differs", "Does NOT agree."),
        ` ${name} reads back something else${back?.last_error ? `: ${back.last_error}` : "."}`,
      );
  return [
    verdict,
    facts([
      ["threshold", threshold(back?.threshold)],
      ["resumes at", back?.resume_at ?? "–"],
      ["stays off at least", steps(back?.min_dwell)],
      ["policy", back?.policy_id ?? "–"],
    ]),
  ];
}
