/**
 * One chart as SVG, drawn at its true width so that text keeps its size on a phone. Pointer, touch and arrow keys choose
 * a level; its values stand in the table below the chart, and are the chart's value text for screen readers.
 *
 * @typedef {{level: number, x: number, y: number, low: ?number, high: ?number}} Point
 * @typedef {object} Spec
 * @property {string} title
 * @property {{label: string, scale: object}} x
 * @property {{label: string, scale: object, say: function(number): string}} y
 * @property {{variant: string, points: Point[], names: ?string}[]} lines; `names` is the side at which points carry their level
 * @property {?{low: ?number, high: ?number, line: ?number, words: string}} band the pivot in units of x; words alone where it lies outside
 * @property {boolean} simulated
 * @property {boolean} scatter whether x is a result too: then the nearest point in both directions counts
 * @property {function(number): string} at a level in words
 */

import { h, replace, s } from "./dom.js";
import { look, marker, swatch } from "./looks.js";

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

const levels = (spec) => [...new Set(spec.lines.flatMap((line) => line.points.map((point) => point.level)))].sort((a, b) => a - b);

function update(own, spec) {
  own.spec = spec;
  own.svg.setAttribute("aria-label", `${spec.title}, ${spec.y.label} against ${spec.x.label}. Arrow keys move along the curves.`);
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
  replace(own.svg, pivot(own, box), axes(own, box), spec.simulated ? watermark(box) : [],
    spec.lines.map((line) => curve(own, line)), own.cursor);
  own.box = box;
  point(own);
}

// ---- what is drawn

function axes({ spec, place }, box) {
  const across = apart(spec.x.scale.ticks, (value) => place.x(value), 30).map(([value, label]) => s("g", {},
    s("path", { class: "grid", d: `M${place.x(value)} ${box.top}V${box.bottom}` }),
    s("text", { x: place.x(value), y: box.bottom + 16, "text-anchor": "middle" }, label)));
  const up = apart(spec.y.scale.ticks, (value) => -place.y(value), 20).map(([value, label]) => s("g", {},
    s("path", { class: "grid", d: `M${box.left} ${place.y(value)}H${box.right}` }),
    s("text", { x: box.left - 7, y: place.y(value) + 4, "text-anchor": "end" }, label)));
  return s("g", { class: "axes" }, across, up,
    s("path", { class: "axis", d: `M${box.left} ${box.top}V${box.bottom}H${box.right}` }),
    s("text", { class: "unit", x: 2, y: 12 }, spec.y.label),
    s("text", { class: "unit", x: box.right, y: box.bottom + 35, "text-anchor": "end" }, spec.x.label));
}

/** Ticks that do not touch one another. */
function apart(ticks, at, room) {
  let last = -Infinity;
  return ticks.filter(([value]) => {
    if (at(value) - last < room) return false;
    last = at(value);
    return true;
  });
}

function curve({ spec, place }, line) {
  const { css, marker: kind, dashed } = look(line.variant);
  const d = line.points.map((point, i) => `${i ? "L" : "M"}${place.x(point.x).toFixed(1)} ${place.y(point.y).toFixed(1)}`).join("");
  const bars = line.points.filter((point) => known(point.low) && known(point.high)).map((point) => bar(spec, place, point));
  const marks = line.points.map((point) => s("path", { class: "mark", d: marker(kind, place.x(point.x), place.y(point.y), 3.6) }));
  return s("g", { class: css, "data-variant": line.variant },
    s("path", { class: "line", d, "stroke-dasharray": dashed ? "6 4" : null }), bars, marks, line.names ? names(place, line) : []);
}

/** A 95 % interval; an end beyond the chart has no cap, so that the edge does not pass for it. */
function bar(spec, place, point) {
  const x = place.x(point.x);
  const caps = [point.low, point.high].filter((end) => Math.abs(spec.y.scale.at(end) - 0.5) <= 0.5);
  const d = [`M${x} ${place.y(point.low)}V${place.y(point.high)}`, ...caps.map((end) => `M${x - 3} ${place.y(end)}h6`)];
  return s("path", { class: "bar-95", d: d.join("") });
}

function names(place, line) {
  const left = line.names === "left";
  return line.points.map((point) => s("text", { class: "level", x: place.x(point.x) + (left ? -8 : 8), y: place.y(point.y) + (left ? 7 : -4), "text-anchor": left ? "end" : "start" }, point.level));
}

function pivot({ spec, place }, box) {
  const { band } = spec;
  if (!band) return [];
  if (!known(band.low)) return s("g", { class: "pivot" }, s("text", { x: box.right - 6, y: box.bottom - 8, "text-anchor": "end" }, band.words));
  const [low, high] = [place.x(band.low), place.x(band.high)];
  const crowded = high > (box.left + box.right) / 2;
  return s("g", { class: "pivot" },
    s("rect", { x: low, y: box.top, width: Math.max(1.5, high - low), height: box.bottom - box.top }),
    known(band.line) ? s("path", { d: `M${place.x(band.line)} ${box.top}V${box.bottom}` }) : [],
    s("text", { x: crowded ? low - 6 : high + 6, y: box.bottom - 8, "text-anchor": crowded ? "end" : "start" }, band.words));
}

function watermark(box) {
  const [x, y] = [(box.left + box.right) / 2, (box.top + box.bottom) / 2];
  const size = Math.min(64, (box.right - box.left) / 6);
  return s("text", { class: "watermark", x, y: y + size / 3, "font-size": size, "text-anchor": "middle", transform: `rotate(-16 ${x} ${y})` }, "SIMULATED");
}

const known = (value) => value !== null && value !== undefined && Number.isFinite(value);

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
  const next = { ArrowRight: here + 1, ArrowUp: here + 1, ArrowLeft: here - 1, ArrowDown: here - 1, Home: 0, End: all.length - 1 }[event.key];
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
const chosen = (own) => own.spec.lines.map((line) => [line.variant, line.points.find((point) => point.level === own.level)]);

function point(own) {
  if (own.level === null || !own.cursor) return;
  const found = chosen(own).filter(([, at]) => at);
  const places = found.map(([, at]) => own.place.x(at.x));
  const together = places.length && Math.max(...places) - Math.min(...places) < 2 && !own.spec.scatter;
  replace(own.cursor,
    together ? s("path", { d: `M${places[0]} ${own.box.top}V${own.box.bottom}` }) : [],
    found.map(([variant, at]) => s("circle", { class: look(variant).css, cx: own.place.x(at.x), cy: own.place.y(at.y), r: 7.5 })));
}

function readout(own) {
  const all = levels(own.spec);
  const rows = chosen(own).map(([variant, at]) => values(own.spec, variant, at));
  const where = own.level === null ? "point at the chart for values" : own.spec.at(own.level);
  replace(own.read, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, where), h("th", { scope: "col", class: "number" }, own.spec.y.unit),
    h("th", { scope: "col", class: "number" }, "95 % interval"))), h("tbody", {}, rows.map((row) => row.node)));
  own.svg.setAttribute("aria-valuenow", Math.max(0, all.indexOf(own.level)));
  own.svg.setAttribute("aria-valuetext", own.level === null ? "no level chosen" : `${where}: ${rows.map((row) => row.words).join("; ")}`);
}

function values(spec, variant, at) {
  const value = at ? spec.y.say(at.y) : "";
  const interval = at && known(at.low) && known(at.high) ? `${spec.y.say(at.low)} to ${spec.y.say(at.high)}` : "";
  const { label } = look(variant);
  const node = h("tr", { "data-variant": variant }, h("th", { scope: "row" }, swatch(variant), " ", label),
    h("td", { class: "number" }, value), h("td", { class: "number" }, interval));
  return { node, words: `${label} ${value || "not measured"} ${value ? spec.y.unit : ""}` };
}
