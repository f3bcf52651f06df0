/** The recommendation in the words of the server that is to use it, with a button that copies them. */

import { call, path } from "./api.js";
import { failed, h, put, replace } from "./dom.js";
import { select } from "./parts.js";

const FORMATS = [
  ["sglang", "flags of python -m patched_worker"],
  ["json", "recommendation.json"],
  ["sglang-adaptive", "SGLang's own adaptive config"],
  ["vllm", "vLLM speculative config"],
  ["trtllm", "TensorRT-LLM config"],
];

/** Choose a format, read it, copy it; the first text is there already. */
export async function exportForm(run) {
  const { node, field } = select("export-format", "Format", FORMATS);
  const text = h("pre", { tabindex: 0, "aria-label": "Exported text" });
  const notes = h("div");
  const copy = h("button", { type: "button" }, "Copy");
  const said = h("span", { role: "status", class: "dim" });
  const draw = () => fill(run, field.value, text, notes, copy, said);
  field.addEventListener("change", draw);
  copy.addEventListener("click", async () => put(said, await copied(text)));
  await draw();
  return h(
    "div",
    { class: "export" },
    h("h3", {}, "Export"),
    h("div", { class: "line" }, node, copy, said),
    text,
    notes,
  );
}

async function fill(run, format, text, notes, copy, said) {
  put(said, "");
  try {
    const found = await call("GET", `${path("runs", run, "export")}?format=${encodeURIComponent(format)}`);
    put(text, found.text);
    text.hidden = copy.disabled = false;
    replace(
      notes,
      (found.notes ?? []).map((note) => h("p", { class: "dim" }, note)),
    );
  } catch (error) {
    text.hidden = copy.disabled = true;
    replace(notes, failed(error));
  }
}

/** The clipboard needs a secure context; elsewhere the text is selected, ready for the keyboard. */
async function copied(text) {
  try {
    await navigator.clipboard.writeText(text.textContent);
    return "Copied.";
  } catch {
    getSelection().selectAllChildren(text);
    return "Selected: press Ctrl+C.";
  }
}
