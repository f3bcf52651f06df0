/** Calls of the service. A call that meets 401 waits for the person to log in, and is then made again. */

// Relative, so that the service also works below a path of a proxy.
const BASE = "api/v1";

/** What the service answered when it did not do what it was asked. */
export class Failure extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

let loggedIn = null;
let askForToken = () => Promise.reject(new Failure(401, "not logged in"));

/** Give the function that shows the login form; its promise ends when the person is logged in. */
export function onLogin(ask) {
  askForToken = ask;
}

/** Show the login form, one for all who wait. */
export function login() {
  loggedIn ??= askForToken().finally(() => (loggedIn = null));
  return loggedIn;
}

/** The address of something: parts are escaped, so that no name can point elsewhere. */
export function path(...parts) {
  return [BASE, ...parts.map(encodeURIComponent)].join("/");
}

/** GET, as JSON. */
export const get = (...parts) => call("GET", path(...parts));
/** POST a body, answer as JSON. */
export const post = (parts, body = {}) => call("POST", path(...parts), body);
/** DELETE. */
export const remove = (...parts) => call("DELETE", path(...parts));

/** Any call; throws a Failure with the service's own one line. */
export async function call(method, address, body) {
  const answer = await sent(method, address, body);
  if (answer.status === 401) {
    await login();
    return call(method, address, body);
  }
  return read(answer);
}

/** Exchange a token for the cookie; false where it is wrong. */
export async function logIn(token) {
  const answer = await sent("POST", "login", { token });
  if (answer.status === 401 || answer.status === 403) return false;
  await read(answer);
  return true;
}

async function sent(method, address, body) {
  const headers = body === undefined ? {} : { "Content-Type": "application/json" };
  const text = body === undefined ? undefined : JSON.stringify(body);
  try {
    return await fetch(address, { method, headers, body: text });
  } catch {
    throw new Failure(0, "The service does not answer. Is it running?");
  }
}

async function read(answer) {
  const text = await answer.text();
  let value = null;
  try {
    value = text ? JSON.parse(text) : null;
  } catch {
    if (answer.ok) throw new Failure(answer.status, "The service answered something that is not JSON.");
  }
  if (!answer.ok) throw new Failure(answer.status, value?.error ?? `The service answered ${answer.status}.`);
  return value;
}
