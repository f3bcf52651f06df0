/** Small pieces that several views share. */

import { h } from "./dom.js";

/** The address of a view of this page. */
export const to = (...parts) => `#/${parts.map(encodeURIComponent).join("/")}`;

/** What is not measured says so wherever it is named. */
export const badge = (source) => (source === "simulated" ? h("span", { class: "badge simulated" }, "simulated") : null);

/** A state as a coloured word. */
export const state = (name, words = name) =>
  h("span", { class: `state ${/^[a-z_]+$/.test(name ?? "") ? name : ""}` }, words);

/** The banner over everything simulated. */
export function banner(source) {
  if (source !== "simulated") return null;
  return h(
    "p",
    { class: "banner", role: "note" },
    h("strong", {}, "SIMULATED."),
    " Every number here comes from a simulated server. Nothing was measured.",
  );
}

/** A choice with a label. */
export function select(id, label, options, chosen) {
  const choices = options.map(([value, words, disabled]) =>
    h("option", { value, selected: value === chosen, disabled: disabled ?? false }, words ?? value),
  );
  const field = h("select", { id }, choices);
  return { node: h("div", { class: "field" }, h("label", { for: id }, label), field), field };
}

/** A text field with a label and what it means. */
export function input(id, label, attributes = {}, hint = "") {
  const field = h("input", { id, autocomplete: "off", "aria-describedby": hint ? `${id}-hint` : null, ...attributes });
  const node = h(
    "div",
    { class: "field" },
    h("label", { for: id }, label),
    hint ? h("small", { id: `${id}-hint` }, hint) : null,
    field,
  );
  return { node, field };
}

/** One of a few, as buttons that look joined; arrow keys work as in any group of radio buttons. */
export function oneOf(name, label, options, chosen, change = () => {}) {
  const choices = options.map(([value, words]) => {
    const radio = h("input", { type: "radio", name, value, checked: value === chosen, onchange: () => change(value) });
    return h("label", {}, radio, h("span", {}, words));
  });
  const node = h("fieldset", { class: "one-of" }, h("legend", {}, label), choices);
  return {
    node,
    value: () => node.querySelector("input:checked")?.value ?? chosen,
    set: (value) => check(node, value),
  };
}

function check(node, value) {
  for (const radio of node.querySelectorAll("input")) radio.checked = radio.value === value;
}
