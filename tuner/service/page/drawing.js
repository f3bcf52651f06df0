/**
 * What a chart shows, as SVG: axes with their units, curves with their intervals, the pivot. `box` is the plot's frame
 * in pixels; `place` turns values into pixels. Colours come from the style sheet, by class.
 */

import { s } from "./dom.js";
import { look, marker } from "./looks.js";

export function axes({ spec, place }, box) {
  const across = apart(spec.x.scale.ticks, (value) => place.x(value), 30).map(([value, label]) =>
    s(
      "g",
      {},
      s("path", { class: "grid", d: `M${place.x(value)} ${box.top}V${box.bottom}` }),
      s("text", { x: place.x(value), y: box.bottom + 16, "text-anchor": "middle" }, label),
    ),
  );
  const up = apart(spec.y.scale.ticks, (value) => -place.y(value), 20).map(([value, label]) =>
    s(
      "g",
      {},
      s("path", { class: "grid", d: `M${box.left} ${place.y(value)}H${box.right}` }),
      s("text", { x: box.left - 7, y: place.y(value) + 4, "text-anchor": "end" }, label),
    ),
  );
  return s(
    "g",
    { class: "axes" },
    across,
    up,
    s("path", { class: "axis", d: `M${box.left} ${box.top}V${box.bottom}H${box.right}` }),
    s("text", { class: "unit", x: 2, y: 12 }, spec.y.label),
    s("text", { class: "unit", x: box.right, y: box.bottom + 35, "text-anchor": "end" }, spec.x.label),
  );
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

export function curve({ spec, place }, line) {
  const { css, marker: kind, dashed } = look(line.variant);
  const d = line.points
    .map((point, i) => `${i ? "L" : "M"}${place.x(point.x).toFixed(1)} ${place.y(point.y).toFixed(1)}`)
    .join("");
  const bars = line.points
    .filter((point) => known(point.low) && known(point.high))
    .map((point) => bar(spec, place, point));
  const marks = line.points.map((point) =>
    s("path", { class: "mark", d: marker(kind, place.x(point.x), place.y(point.y), 3.6) }),
  );
  return s(
    "g",
    { class: css, "data-variant": line.variant },
    s("path", { class: "line", d, "stroke-dasharray": dashed ? "6 4" : null }),
    bars,
    marks,
    line.names ? names(place, line) : [],
  );
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
  return line.points.map((point) =>
    s(
      "text",
      {
        class: "level",
        x: place.x(point.x) + (left ? -8 : 8),
        y: place.y(point.y) + (left ? 7 : -4),
        "text-anchor": left ? "end" : "start",
      },
      point.level,
    ),
  );
}

export function pivot({ spec, place }, box) {
  const { band } = spec;
  if (!band) return [];
  if (!known(band.low))
    return s(
      "g",
      { class: "pivot" },
      s("text", { x: box.right - 6, y: box.bottom - 8, "text-anchor": "end" }, band.words),
    );
  const [low, high] = [place.x(band.low), place.x(band.high)];
  const crowded = high > (box.left + box.right) / 2;
  return s(
    "g",
    { class: "pivot" },
    s("rect", { x: low, y: box.top, width: Math.max(1.5, high - low), height: box.bottom - box.top }),
    known(band.line) ? s("path", { d: `M${place.x(band.line)} ${box.top}V${box.bottom}` }) : [],
    s(
      "text",
      { x: crowded ? low - 6 : high + 6, y: box.bottom - 8, "text-anchor": crowded ? "end" : "start" },
      band.words,
    ),
  );
}

export function watermark(box) {
  const [x, y] = [(box.left + box.right) / 2, (box.top + box.bottom) / 2];
  const size = Math.min(64, (box.right - box.left) / 6);
  return s(
    "text",
    {
      class: "watermark",
      x,
      y: y + size / 3,
      "font-size": size,
      "text-anchor": "middle",
      transform: `rotate(-16 ${x} ${y})`,
    },
    "SIMULATED",
  );
}

export const known = (value) => value !== null && value !== undefined && Number.isFinite(value);
