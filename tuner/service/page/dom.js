/**
 * Building elements. Whatever comes from a server becomes text and never markup: children are nodes or text nodes,
 * and nothing in this page is parsed as HTML.
 */

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element; functions among the attributes are listeners ("onclick"), false and null leave one out. */
export function h(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** An SVG element. */
export function s(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(
    ...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false),
  );
  return element;
}

/** Write text only where it changed, so that nothing is announced or repainted for nothing. */
export function put(element, text) {
  if (element.textContent !== String(text)) element.textContent = text;
}

/** Put children into a container. */
export function replace(container, ...children) {
  container.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
}

/**
 * A list that follows its data without being built anew: focus and open menus survive an update.
 *
 * @param container where the entries go
 * @param make item -> {node, update(item)}
 * @returns a function that takes the items, each with its key
 */
export function keyed(container, make) {
  const known = new Map();
  return (items) => {
    const wanted = new Set(items.map(([key]) => key));
    for (const [key, entry] of known) {
      if (!wanted.has(key)) {
        entry.node.remove();
        known.delete(key);
      }
    }
    items.forEach(([key, item], place) => {
      if (!known.has(key)) known.set(key, make(item));
      const entry = known.get(key);
      entry.update(item);
      if (container.children[place] !== entry.node)
        container.insertBefore(entry.node, container.children[place] ?? null);
    });
  };
}

/** A table that scrolls by itself where it is too wide. Cells are text or nodes; numbers are set right. */
export function table(label, heads, rows) {
  const head = h(
    "tr",
    {},
    heads.map((name) => h("th", { scope: "col", class: numeric(name) }, plain(name))),
  );
  return h(
    "div",
    { class: "scroll", role: "region", "aria-label": label, tabindex: 0 },
    h(
      "table",
      {},
      h("thead", {}, head),
      h(
        "tbody",
        {},
        rows.map((cells) => row(heads, cells)),
      ),
    ),
  );
}

function row(heads, cells) {
  return h(
    "tr",
    {},
    cells.map((cell, i) => (i === 0 ? h("th", { scope: "row" }, cell) : h("td", { class: numeric(heads[i]) }, cell))),
  );
}

/** Heads that begin with "#" stand over numbers. */
const numeric = (head) => (head.startsWith("#") ? "number" : null);
const plain = (head) => head.replace(/^#/, "");

/** Facts as a list of terms and values. */
export function facts(pairs) {
  return h(
    "dl",
    { class: "facts" },
    pairs.map(([term, value]) => h("div", {}, h("dt", {}, term), h("dd", {}, value))),
  );
}

/** A line that says what went wrong, announced at once. */
export const failed = (error) => h("p", { class: "failed", role: "alert" }, error.message);

/** Run something slow from a button: once at a time, and what goes wrong is shown in `where`. */
export async function busy(button, where, work) {
  button.disabled = true;
  replace(where);
  try {
    return await work();
  } catch (error) {
    replace(where, failed(error));
    return undefined;
  } finally {
    button.disabled = false;
  }
}
