/** Numbers, times and thresholds as people read them. Units stand beside the figures, never in the reader's head. */

const NONE = "–";

/** A number with thousands separators and a fixed number of decimals. */
export function number(value, decimals = 0) {
  if (value === null || value === undefined) return NONE;
  return value.toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
}

/** A number with three significant digits, as at an axis or in a readout. */
export function figure(value) {
  if (value === null || value === undefined) return NONE;
  const decimals = value === 0 ? 0 : Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value))));
  return number(value, Math.min(decimals, 6));
}

/** Seconds in milliseconds. */
export const ms = (seconds) => (seconds === null || seconds === undefined ? NONE : `${figure(1000 * seconds)} ms`);

/** A share in percent. */
export const percent = (share, decimals = 1) =>
  share === null || share === undefined ? NONE : `${number(100 * share, decimals)} %`;

/** How long: 42 s, 3 min, 1 h 20 min. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return NONE;
  if (seconds < 90) return `${Math.round(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 90) return `${minutes} min`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** A moment, given in seconds since 1970, in the reader's own time zone: 2026-01-02 03:04. */
export function when(seconds) {
  if (seconds === null || seconds === undefined) return NONE;
  const at = new Date(1000 * seconds);
  const two = (part) => String(part).padStart(2, "0");
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return `${day} ${two(at.getHours())}:${two(at.getMinutes())}`;
}

/** The same with seconds, for things that follow closely on one another. */
export function moment(seconds) {
  return seconds === null || seconds === undefined
    ? NONE
    : `${when(seconds)}:${String(new Date(1000 * seconds).getSeconds()).padStart(2, "0")}`;
}

/** A threshold in words: the largest decode batch that still speculates. */
export function threshold(value) {
  if (value === null || value === undefined) return "never disable";
  return value === 0 ? "never speculate" : String(value);
}

/** A server's threshold in words; one that counts no steps has none. */
export function policy(server) {
  return server.threshold === null && !Number.isInteger(server.steps_on) ? NONE : threshold(server.threshold);
}

/** An interval of thresholds in words. */
export function span(low, high) {
  if (low === high) return threshold(low);
  return `${low === 0 ? "never speculating" : threshold(low)} to ${high === null ? "never disabling" : high}`;
}

/** The shape of a pivot in words. */
export const shape = (name) =>
  ({
    crossover: "pays up to the pivot",
    always_on: "always pays",
    always_off: "never pays",
    not_monotone: "no single pivot",
  })[name] ??
  name ??
  "";

/** Progress in words: 12 of 36 points, about 4 min left. */
export function progress(job) {
  const points = job.points_planned ? `${job.points_done ?? 0} of ${job.points_planned} points` : "starting";
  return job.state === "running" && job.eta_s ? `${points}, about ${duration(job.eta_s)} left` : points;
}
