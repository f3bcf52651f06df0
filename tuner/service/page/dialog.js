/** The two dialogs: the login form, and the one that asks before anything changes. */

import { failed, h, replace } from "./dom.js";
import { logIn, onLogin } from "./api.js";

/** Make the login form the answer to every 401. */
export function start() {
  onLogin(askForToken);
}

function askForToken() {
  const dialog = document.getElementById("login");
  const form = dialog.querySelector("form");
  const field = document.getElementById("token");
  const problem = document.getElementById("login-problem");
  field.value = "";
  problem.hidden = true;
  dialog.showModal();
  return new Promise((resolve) => {
    const keepOpen = (event) => event.preventDefault();
    const tryIt = async (event) => {
      event.preventDefault();
      const why = await logIn(field.value).then(
        (ok) => (ok ? null : "This token is wrong."),
        (error) => error.message,
      );
      if (why !== null) return refuse(problem, field, why);
      form.removeEventListener("submit", tryIt);
      dialog.removeEventListener("cancel", keepOpen);
      field.value = "";
      dialog.close();
      return resolve();
    };
    form.addEventListener("submit", tryIt);
    dialog.addEventListener("cancel", keepOpen);
  });
}

function refuse(problem, field, why) {
  problem.hidden = false;
  problem.textContent = why;
  field.select();
}

/**
 * Ask before doing; the dialog then shows what came of it.
 *
 * @param title the question
 * @param body nodes that say what will change
 * @param verb what the button does
 * @param act does it; what it returns (nodes) takes the place of the body. Nothing returned closes the dialog.
 * @param grave whether the button warns
 */
export function confirm({ title, body, verb, act, grave = false }) {
  const dialog = document.getElementById("dialog");
  const content = h("div", {}, body);
  const problem = h("div", { "aria-live": "assertive" });
  const cancel = h("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
  const go = h("button", { type: "button", class: grave ? "main grave" : "main" }, verb);
  const actions = h("div", { class: "actions" }, cancel, go);
  go.addEventListener("click", async () => {
    go.disabled = true;
    replace(problem);
    try {
      const outcome = await act();
      if (!outcome) return dialog.close();
      replace(content, h("div", { role: "status" }, outcome));
      go.remove();
      cancel.textContent = "Close";
      cancel.focus();
    } catch (error) {
      replace(problem, failed(error));
    } finally {
      go.disabled = false;
    }
    return undefined;
  });
  replace(dialog, h("h2", { id: "dialog-title" }, title), content, problem, actions);
  dialog.showModal();
  cancel.focus();
}
