/**
 * One chart, drawn at its true width so that text keeps its size on a phone. Pointer, touch and arrow keys choose a
 * level; its values stand in the table beside the chart, and are the chart's value text for screen readers.
 *
 * @typedef {{level: number, x: number, y: number, low: ?number, high: ?number}} Point
 * @typedef {object} Spec
 * @property {string} title
 * @property {{label: string, scale: object}} x
 * @property {{label: string, scale: object, say: function(number): string}} y
 * @property {{variant: string, points: Point[], names: ?string}[]} lines names: the side where points carry their level
 * @property {?{low: ?number, high: ?number, line: ?number, words: string}} band the pivot in units of x; words alone
 *   where it lies outside
 * @property {boolean} simulated
 * @property {boolean} scatter whether x is a result too: then the nearest point in both directions counts
 * @property {function(number): string} at a level in words
 */

import { h, replace, s } from "./dom.js";
import { axes, curve, known, pivot, watermark } from "./drawing.js";
import { look, swatch } from "./looks.js";

const EDGE = { top: 26, right: 14, bottom: 42, left: 54 };

/** Make a chart: {node, update(spec)}. */
export function chart(spec) {
  const own = { spec, level: null, place: null };
  own.svg = s("svg", { class: "chart", tabindex: 0, role: "slider", "aria-orientation": "horizontal" });
  own.read = h("table", { class: "readout" });
  own.svg.addEventListener("pointermove", (event) => choose(own, nearest(own, event)));
  own.svg.addEventListener("pointerdown", (event) => choose(own, nearest(own, event)));
  own.svg.addEventListener("keydown", (event) => onKey(own, event));
  own.svg.addEventListener("focus", () => own.level ?? choose(own, levels(own.spec)[0]));
  new ResizeObserver(() => draw(own)).observe(own.svg);
  update(own, spec);
  return { node: h("div", { class: "plot" }, own.svg, own.read), update: (next) => update(own, next) };
}

const levels = (spec) =>
  [...new Set(spec.lines.flatMap((line) => line.points.map((point) => point.level)))].sort((a, b) => a - b);

function update(own, spec) {
  own.spec = spec;
  own.svg.setAttribute(
    "aria-label",
    `${spec.title}, ${spec.y.label} against ${spec.x.label}. Arrow keys move along the curves.`,
  );
  own.svg.setAttribute("aria-valuemin", 0);
  own.svg.setAttribute("aria-valuemax", Math.max(0, levels(spec).length - 1));
  draw(own);
  readout(own);
}

function draw(own) {
  const width = own.svg.clientWidth;
  if (!width) return;
  const height = width < 480 ? 260 : 320;
  const { spec } = own;
  const box = { left: EDGE.left, right: width - EDGE.right, top: EDGE.top, bottom: height - EDGE.bottom };
  own.place = {
    x: (value) => box.left + spec.x.scale.at(value) * (box.right - box.left),
    y: (value) => box.bottom - spec.y.scale.at(value) * (box.bottom - box.top),
  };
  own.cursor = s("g", { class: "cursor" });
  own.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  own.svg.setAttribute("height", height);
  replace(
    own.svg,
    pivot(own, box),
    axes(own, box),
    spec.simulated ? watermark(box) : [],
    spec.lines.map((line) => curve(own, line)),
    own.cursor,
  );
  own.box = box;
  point(own);
}

// ---- choosing a level

function nearest(own, event) {
  if (!own.place) return null;
  const frame = own.svg.getBoundingClientRect();
  const [x, y] = [event.clientX - frame.left, event.clientY - frame.top];
  let best = [Infinity, null];
  for (const line of own.spec.lines) {
    for (const point of line.points) {
      const distance = Math.hypot(own.place.x(point.x) - x, (own.place.y(point.y) - y) * (own.spec.scatter ? 1 : 0.1));
      if (distance < best[0]) best = [distance, point.level];
    }
  }
  return best[1];
}

function onKey(own, event) {
  const all = levels(own.spec);
  const here = all.indexOf(own.level);
  const next = {
    ArrowRight: here + 1,
    ArrowUp: here + 1,
    ArrowLeft: here - 1,
    ArrowDown: here - 1,
    Home: 0,
    End: all.length - 1,
  }[event.key];
  if (next === undefined) return;
  event.preventDefault();
  choose(own, all[Math.min(Math.max(next, 0), all.length - 1)]);
}

function choose(own, level) {
  if (level === null || level === undefined || level === own.level) return;
  own.level = level;
  point(own);
  readout(own);
}

/** The chosen points of every line. */
const chosen = (own) =>
  own.spec.lines.map((line) => [line.variant, line.points.find((point) => point.level === own.level)]);

function point(own) {
  if (own.level === null || !own.cursor) return;
  const found = chosen(own).filter(([, at]) => at);
  const places = found.map(([, at]) => own.place.x(at.x));
  const together = places.length && Math.max(...places) - Math.min(...places) < 2 && !own.spec.scatter;
  replace(
    own.cursor,
    together ? s("path", { d: `M${places[0]} ${own.box.top}V${own.box.bottom}` }) : [],
    found.map(([variant, at]) =>
      s("circle", { class: look(variant).css, cx: own.place.x(at.x), cy: own.place.y(at.y), r: 7.5 }),
    ),
  );
}

function readout(own) {
  const all = levels(own.spec);
  const rows = chosen(own).map(([variant, at]) => values(own.spec, variant, at));
  const where = own.level === null ? "point at the chart for values" : own.spec.at(own.level);
  replace(
    own.read,
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        h("th", { scope: "col" }, where),
        h("th", { scope: "col", class: "number" }, own.spec.y.unit),
        h("th", { scope: "col", class: "number" }, "95 % interval"),
      ),
    ),
    h(
      "tbody",
      {},
      rows.map((row) => row.node),
    ),
  );
  own.svg.setAttribute("aria-valuenow", Math.max(0, all.indexOf(own.level)));
  own.svg.setAttribute(
    "aria-valuetext",
    own.level === null ? "no level chosen" : `${where}: ${rows.map((row) => row.words).join("; ")}`,
  );
}

function values(spec, variant, at) {
  const value = at ? spec.y.say(at.y) : "";
  const interval = at && known(at.low) && known(at.high) ? `${spec.y.say(at.low)} to ${spec.y.say(at.high)}` : "";
  const { label } = look(variant);
  const node = h(
    "tr",
    { "data-variant": variant },
    h("th", { scope: "row" }, swatch(variant), " ", label),
    h("td", { class: "number" }, value),
    h("td", { class: "number" }, interval),
  );
  return { node, words: `${label} ${value || "not measured"} ${value ? spec.y.unit : ""}` };
}
