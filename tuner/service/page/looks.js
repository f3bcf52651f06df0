/** How variants look: the labels, markers and lines of tuner/style.py. Their colours stand in style.css. */

import { s } from "./dom.js";

export const LOOKS = {
  baseline: { label: "baseline", marker: "o" },
  baseline_no_overlap: { label: "baseline, overlap off", marker: "s", dashed: true },
  eagle3: { label: "EAGLE-3, static", marker: "^" },
  forced_off: { label: "patched, forced off", marker: "v", dashed: true },
  dynamic: { label: "patched, dynamic", marker: "D" },
};

const OTHER = { marker: "o", dashed: true };

/** Look of a variant; one that this page does not know gets a plain one under its own name. */
export function look(variant) {
  const own = Object.hasOwn(LOOKS, variant);
  return { ...(own ? LOOKS[variant] : { ...OTHER, label: variant }), css: own ? `v-${variant}` : "v-other" };
}

/** In the order in which people expect them. */
export function inOrder(variants) {
  const order = Object.keys(LOOKS);
  return [...variants].sort((a, b) => (order.indexOf(a) + 1 || 99) - (order.indexOf(b) + 1 || 99));
}

/** Path of a marker around a point. */
export function marker(kind, x, y, r) {
  const at = (dx, dy) => `${(x + dx * r).toFixed(1)} ${(y + dy * r).toFixed(1)}`;
  const corners = {
    s: [
      [-0.85, -0.85],
      [0.85, -0.85],
      [0.85, 0.85],
      [-0.85, 0.85],
    ],
    "^": [
      [0, -1.1],
      [1, 0.8],
      [-1, 0.8],
    ],
    v: [
      [0, 1.1],
      [1, -0.8],
      [-1, -0.8],
    ],
    D: [
      [0, -1.15],
      [1.15, 0],
      [0, 1.15],
      [-1.15, 0],
    ],
  }[kind];
  if (corners) return `M${corners.map(([dx, dy]) => at(dx, dy)).join("L")}Z`;
  return `M${at(-1, 0)}A${r} ${r} 0 1 1 ${at(1, 0)}A${r} ${r} 0 1 1 ${at(-1, 0)}Z`;
}

/** A short piece of a variant's line with its marker, for legends. */
export function swatch(variant) {
  const { css, marker: kind, dashed } = look(variant);
  return s(
    "svg",
    { class: `swatch ${css}`, viewBox: "0 0 26 12", width: 26, height: 12, "aria-hidden": "true" },
    s("path", { class: "line", d: "M1 6H25", "stroke-dasharray": dashed ? "5 3" : null }),
    s("path", { class: "mark", d: marker(kind, 13, 6, 4) }),
  );
}
