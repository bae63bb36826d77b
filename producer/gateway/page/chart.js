// One metric over steps as SVG: a curve for each run and variant, the best marked, gaps with their reasons.

const WIDTH = 400, HEIGHT = 190, LEFT = 46, RIGHT = 10, TOP = 10, BOTTOM = 26;
const LARGE = 1e300; // What is larger has its place at the edge: a difference of two such is no number.
const EQUAL = 1e-9; // Of the larger one: values that are closer are drawn as one, for steps between them would not move on.
const SVG = "http://www.w3.org/2000/svg";

function element(name, attributes, parent) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  parent?.append(made);
  return made;
}

/** A number as short as it can be told from its neighbours. */
export function short(value) {
  if (typeof value !== "number") return String(value);
  if (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e6)) return value.toExponential(2);
  return String(Number(value.toPrecision(5)));
}

/** Round values between low and high, about as many as wanted. */
function ticks(low, high, wanted) {
  const raw = (high - low) / wanted, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= raw) * power;
  const found = [];
  for (let i = Math.ceil(low / step); i * step <= high + step * 1e-9; i++) found.push(i * step);
  return found;
}

function range(values, room) {
  let low = Infinity, high = -Infinity;
  for (const value of values) {
    low = Math.min(low, Math.max(value, -LARGE));
    high = Math.max(high, Math.min(value, LARGE));
  }
  const size = Math.max(Math.abs(low), Math.abs(high));
  if (high - low <= size * EQUAL) {
    const half = size * 0.05 || 1;
    return [low - half, high + half];
  }
  return [low - (high - low) * room, high + (high - low) * room];
}

/** The best point of a curve; null where nobody said which way is better. */
export function bestOf(curve) {
  if (curve.higherIsBetter === undefined) return null;
  const sign = curve.higherIsBetter ? 1 : -1;
  return curve.points.reduce((best, point) =>
    Number.isFinite(point.value) && (!best || sign * point.value > sign * best.value) ? point : best, null);
}

function axes(svg, x, y, steps, values) {
  for (const at of ticks(values[0], values[1], 6)) {
    element("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y(at), y2: y(at), class: "grid" }, svg);
    element("text", { x: LEFT - 6, y: y(at) + 3.5, "text-anchor": "end" }, svg).textContent = short(Number(at.toPrecision(6)));
  }
  for (const at of ticks(steps[0], steps[1], 6)) {
    if (at < 0 || at !== Math.round(at)) continue;
    const anchor = x(at) > WIDTH - 24 ? { x: WIDTH - 2, "text-anchor": "end" } : { x: x(at), "text-anchor": "middle" };
    element("text", { ...anchor, y: HEIGHT - 8 }, svg).textContent = (at || 0).toLocaleString("en"); // Not "-0".
  }
}

function draw(svg, curve, x, y) {
  const points = curve.points.filter((point) => Number.isFinite(point.value));
  const path = points.map((point, i) => `${i ? "L" : "M"}${x(point.step).toFixed(1)} ${y(point.value).toFixed(1)}`).join("");
  const dash = curve.variant === "regular" ? {} : { "stroke-dasharray": "6 4" };
  element("path", { d: path, class: "curve", stroke: curve.colour, ...dash }, svg);
  for (const point of points.length > 150 ? [] : points) {
    element("circle", { cx: x(point.step), cy: y(point.value), r: 2.6, fill: curve.colour, class: "point" }, svg);
  }
  const best = bestOf(curve);
  if (best) element("circle", { cx: x(best.step), cy: y(best.value), r: 6, stroke: curve.colour, class: "best" }, svg);
}

/** Steps without a number, or with one that no curve can show, at the foot of the chart. */
function drawGaps(svg, curves, x) {
  for (const curve of curves) {
    for (const gap of [...curve.gaps, ...curve.points.filter((point) => !Number.isFinite(point.value))]) {
      const at = x(gap.step);
      element("line", { x1: at, x2: at, y1: HEIGHT - BOTTOM - 7, y2: HEIGHT - BOTTOM, class: `gap ${gap.state ?? "dead"}` }, svg);
    }
  }
}

function sentence(curve, point) {
  const name = curve.variant === "regular" ? curve.run : `${curve.run} (${curve.variant})`;
  if (point.state) return `${name}, step ${point.step}: ${point.state}${point.reason ? `, ${point.reason}` : ""}`;
  const error = point.error === undefined ? "" : ` ± ${short(point.error)}`;
  return `${name}, step ${point.step}: ${short(point.value)}${error}${point === bestOf(curve) ? ", the best" : ""}`;
}

/** Tells of the nearest point under the pointer. */
function explain(svg, curves, x, y, tip) {
  const all = curves.flatMap((curve) => [
    ...curve.points.map((point) => ({ curve, point, x: x(point.step), y: Number.isFinite(point.value) ? y(point.value) : HEIGHT - BOTTOM })),
    ...curve.gaps.map((point) => ({ curve, point, x: x(point.step), y: HEIGHT - BOTTOM })),
  ]);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const px = ((event.clientX - box.left) / box.width) * WIDTH, py = ((event.clientY - box.top) / box.height) * HEIGHT;
    let nearest = null, least = 900;
    for (const place of all) {
      const distance = (place.x - px) ** 2 + (place.y - py) ** 2;
      if (distance < least) [nearest, least] = [place, distance];
    }
    tip(nearest && sentence(nearest.curve, nearest.point), event.clientX, event.clientY);
  });
  svg.addEventListener("pointerleave", () => tip(null));
}

/**
 * curves: [{run, variant, colour, higherIsBetter, points: [{step, value, error}], gaps: [{step, state, reason}]}], points in the
 * order of steps. tip(text | null, x, y) shows a sentence at the pointer.
 */
export function chart(title, curves, tip) {
  const card = document.createElement("article");
  card.className = "chart";
  const head = card.appendChild(document.createElement("h3"));
  head.textContent = title;
  const line = card.appendChild(document.createElement("p"));
  line.textContent = curves.map((curve) => {
    const best = bestOf(curve), last = curve.points.at(-1), name = curve.variant === "regular" ? curve.run : `${curve.run} (${curve.variant})`;
    return `${name}: ${last ? `${short(last.value)} at ${last.step}` : "no number yet"}${best ? `, best ${short(best.value)} at ${best.step}` : ""}${curve.gaps.length ? `, ${curve.gaps.length} without` : ""}`;
  }).join(" · ");
  const steps = curves.flatMap((curve) => [...curve.points, ...curve.gaps].map((point) => point.step));
  const values = curves.flatMap((curve) => curve.points.map((point) => point.value).filter(Number.isFinite));
  const across = range(steps.length ? steps : [0, 1], 0.02), up = range(values.length ? values : [0, 1], 0.06);
  const x = (step) => LEFT + ((step - across[0]) / (across[1] - across[0])) * (WIDTH - LEFT - RIGHT);
  const y = (value) => TOP + (1 - (value - up[0]) / (up[1] - up[0])) * (HEIGHT - TOP - BOTTOM);
  const svg = element("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${title}. ${line.textContent}` }, card);
  axes(svg, x, y, across, up);
  drawGaps(svg, curves, x);
  for (const curve of curves) draw(svg, curve, x, y);
  explain(svg, curves, x, y, tip);
  return card;
}
