// Numbers and axes of charts: how a value is written, where ticks stand, and where a value lies on the screen.

const LARGE = 1e300; // Larger values are drawn at the edge: their difference may be no number.
const EQUAL = 1e-9; // Values that differ by less than this part of the larger one get the same range.
const MINUTE = 60e3, HOUR = 60 * MINUTE, DAY = 24 * HOUR;
const TIME_STEPS = [10, 100, 1000, 5e3, 15e3, MINUTE, 5 * MINUTE, 15 * MINUTE, HOUR, 3 * HOUR, 6 * HOUR, DAY, 2 * DAY, 7 * DAY, 30 * DAY, 90 * DAY, 365 * DAY];

/** A number, as short as possible without looking equal to its neighbours. */
export function short(value) {
  if (typeof value !== "number") return String(value);
  if (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e6)) return value.toExponential(2);
  return String(Number(value.toPrecision(5)));
}

/** "850 ms", "12 s", "5 min", "3 h", "2 d". */
export function duration(ms) {
  const all = Math.max(0, ms);
  if (all > 0 && all < 1000) return `${Math.round(all)} ms`;
  if (all < 2 * MINUTE) return `${Math.round(all / 1000)} s`;
  if (all < 2 * HOUR) return `${Math.round(all / MINUTE)} min`;
  return all < 2 * DAY ? `${Math.round(all / HOUR)} h` : `${Math.round(all / DAY)} d`;
}

const clock = (ms) => new Date(ms).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
const date = (ms) => new Date(ms).toLocaleDateString("en-GB", { day: "numeric", month: "short" });

/** The kinds of x axis. `of` returns a point's place on the axis, or undefined if it has none. */
export const AXES = {
  step: { of: (point) => point.step, tick: (at) => (at || 0).toLocaleString("en"), whole: true },
  epoch: { of: (point) => point.epoch, tick: (at) => short(Number(at.toPrecision(6))) },
  elapsed: { of: (point, curve) => (point.at === undefined ? undefined : point.at - curve.begin), tick: duration, time: true },
  clock: { of: (point) => point.at, tick: (at, size) => (size > 2 * DAY ? date(at) : clock(at)), time: true },
};

/** The range that holds the values, with some room beyond both ends. */
export function range(values, room) {
  let low = Infinity, high = -Infinity;
  for (const value of values) {
    low = Math.min(low, Math.max(value, -LARGE));
    high = Math.max(high, Math.min(value, LARGE));
  }
  if (low > high) return [0, 1];
  const size = Math.max(Math.abs(low), Math.abs(high));
  if (high - low <= size * EQUAL) {
    const half = size * 0.05 || 1;
    return [low - half, high + half];
  }
  return [low - (high - low) * room, high + (high - low) * room];
}

/** Round values between low and high, about as many as wanted. */
export function ticks([low, high], wanted, time = false) {
  const raw = (high - low) / wanted, power = 10 ** Math.floor(Math.log10(raw));
  const round = [1, 2, 5, 10].find((factor) => factor * power >= raw) * power;
  const step = time ? TIME_STEPS.find((one) => one >= raw) ?? round : round;
  const found = [];
  for (let i = Math.ceil(low / step); i * step <= high + step * 1e-9; i++) found.push(i * step);
  return found;
}

/** Powers of ten in the range, with 2 and 5 times them if there are few. */
export function logTicks([low, high]) {
  const found = [];
  const factors = Math.log10(high / low) > 3 ? [1] : [1, 2, 5];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) {
    found.push(...factors.map((factor) => factor * 10 ** power).filter((at) => at >= low && at <= high));
  }
  return found.length > 1 ? found : ticks([low, high], 4);
}

/** A function from values of the domain to places between `from` and `to`. */
export function scale([low, high], from, to, log = false) {
  const place = log ? Math.log10 : (value) => value;
  const begin = place(low), size = place(high) - begin;
  return (value) => from + ((place(value) - begin) / size) * (to - from);
}
