/**
 * What the service is doing now: its jobs, servers and runs, kept by its events and fetched anew when it says `reset`
 * or the connection was lost. Views subscribe; nothing polls.
 */

import { get, path } from "./api.js";

const RETRY_MS = 3000;
const KINDS = { job: "id", server: "name", run: "name" };

/** The latest of each kind, by its key. */
export const known = { job: new Map(), server: new Map(), run: new Map() };

/** Whether events arrive. */
export const link = { up: null };

const listeners = new Set();
let ready = null;
let changedSince = new Set();

/**
 * Hear of changes until `signal` is aborted.
 *
 * @param kinds "job", "server", "run" or "link"
 * @param tell called with (kind, the changed object or null where all may have changed)
 */
export function follow(kinds, signal, tell) {
  const listener = (kind, item) => kinds.includes(kind) && tell(kind, item);
  listeners.add(listener);
  signal.addEventListener("abort", () => listeners.delete(listener));
}

function tellAll(kind, item) {
  for (const listener of [...listeners]) listener(kind, item);
}

/** Fetch all three lists; what an event brought meanwhile is newer and stays. */
export function refresh() {
  const fetching = fetched();
  fetching.catch(() => {
    if (ready === fetching) ready = null; // whoever asks next tries again
  });
  ready = fetching;
  return fetching;
}

/** Wait until the lists are there. */
export const loaded = () => ready ?? refresh();

async function fetched() {
  changedSince = new Set();
  const answers = await Promise.all(Object.keys(KINDS).map((kind) => get(`${kind}s`)));
  Object.entries(KINDS).forEach(([kind, key], i) => {
    const items = new Map(answers[i][`${kind}s`].map((item) => [item[key], item]));
    for (const changed of known[kind].keys()) {
      if (changedSince.has(`${kind} ${changed}`)) items.set(changed, known[kind].get(changed));
    }
    known[kind] = items;
    tellAll(kind, null);
  });
}

/** Take an object that the service gave as an answer, as if an event had brought it. */
export function learn(kind, item) {
  known[kind].set(item[KINDS[kind]], item);
  changedSince.add(`${kind} ${item[KINDS[kind]]}`);
  tellAll(kind, item);
}

/** Open the stream of events, and open it again whenever it ends. */
export function connect() {
  const stream = new EventSource(path("events"));
  stream.addEventListener("open", () => {
    refresh().catch(() => {});
    setLink(true);
  });
  stream.addEventListener("reset", () => refresh().catch(() => {}));
  for (const kind of Object.keys(KINDS)) {
    stream.addEventListener(kind, (event) => learn(kind, JSON.parse(event.data)));
  }
  stream.addEventListener("error", () => {
    setLink(false);
    // The browser reconnects by itself after a cut, but not after a status such as 401.
    if (stream.readyState === EventSource.CLOSED) reopen(stream);
  });
}

async function reopen(stream) {
  stream.close();
  await new Promise((resolve) => setTimeout(resolve, link.tried ? RETRY_MS : 0));
  link.tried = true;
  await get("jobs").catch(() => {}); // shows the login form where that is what is missing
  connect();
}

function setLink(up) {
  if (link.up === up) return;
  link.up = up;
  if (up) link.tried = false;
  tellAll("link", null);
}
