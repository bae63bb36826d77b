// One metric as a chart in SVG: curves, 95 % bands, the best points, steps without a number, zoom, and a tip for each point.
import { bestOf, smoothed } from "/page/curves.js";
import { saveCsv, savePng, saveSvg } from "/page/export.js";
import { markPath } from "/page/run_colours.js";
import { AXES, logTicks, range, scale, short, ticks } from "/page/scale.js";

const WIDTH = 420, HEIGHT = 210, LEFT = 48, RIGHT = 10, TOP = 8, BOTTOM = 26;
const PLOT_WIDTH = WIDTH - LEFT - RIGHT, PLOT_HEIGHT = HEIGHT - TOP - BOTTOM;
const POINTS_MARKED = 150; // If more points are in view, only those that differ from the best are marked,
const MARK_SPACE = 7; // and marks closer than this to the one before are left out, so that they do not overlap.
const NEAR = 30, DRAG = 6; // Units of the chart.
const SVG = "http://www.w3.org/2000/svg";

function element(name, attributes, parent) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  parent?.append(made);
  return made;
}

const line = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

function button(name, label, title, parent, onClick) {
  const made = parent.appendChild(document.createElement("button"));
  made.type = "button";
  made.className = `tool ${name}`;
  made.textContent = label;
  made.title = title;
  made.setAttribute("aria-label", title);
  made.addEventListener("click", onClick);
  return made;
}

/** What is said of a point or of a step without one. */
function sentence(curve, point) {
  const epoch = point.epoch === undefined ? "" : `, epoch ${short(point.epoch)}`;
  const where = `${curve.name}, step ${point.step}${epoch}`;
  if (point.state) return `${where}: ${point.state}${point.reason ? `, ${point.reason}` : ""}`;
  const error = point.error === undefined ? "" : ` ± ${short(point.error)}`;
  const interval = point.low === undefined ? "" : `, 95 % interval ${short(point.low)} to ${short(point.high)}`;
  const judged = typeof point.differs !== "boolean" ? "" : `, ${point.differs ? "differs" : "does not differ"} significantly from step ${point.against} (p ${short(Number(point.p.toPrecision(3)))})`;
  const refused = point.refused ? `, not compared: ${point.refused}` : "";
  const samples = point.samples ? ". Enter or a click shows its samples" : "";
  return `${where}: ${short(point.value)}${error}${point === bestOf(curve) ? ", the best" : ""}${interval}${judged}${refused}${samples}`;
}

/** What the legend says of a curve. */
function summary(curve) {
  const best = bestOf(curve), last = curve.points.at(-1);
  const judged = curve.points.filter((point) => typeof point.differs === "boolean"), differ = judged.filter((point) => point.differs);
  const said = judged.length ? `, ${differ.length} of ${judged.length} steps differ significantly from step ${judged[0].against}` : "";
  return `${curve.name}: ${last ? `${short(last.value)} at ${last.step}` : "no result yet"}${best ? `, best ${short(best.value)} at ${best.step}` : ""}${curve.gaps.length ? `, ${curve.gaps.length} without a result` : ""}${said}`;
}

/** The parts of a curve whose neighbours all have an interval. */
function banded(points) {
  const parts = [[]];
  for (const place of points) {
    if (Number.isFinite(place.point.low) && Number.isFinite(place.point.high)) parts.at(-1).push(place);
    else if (parts.at(-1).length) parts.push([]);
  }
  return parts.filter((part) => part.length);
}

/** Whether at least half of the points of two curves are at the same places. */
function coincide(some, others) {
  const [few, many] = some.length < others.length ? [some, others] : [others, some];
  const places = new Set(many.map(String));
  return few.length > 1 && few.filter((place) => places.has(String(place))).length * 2 >= few.length;
}

/** Dashes for each curve. Curves that coincide share a line: each shows in the gaps of the others. */
function dashesOf(lines, curves) {
  return lines.map((points, i) => {
    const alike = lines.flatMap((other, at) => (at === i || coincide(points, other) ? [at] : []));
    if (alike.length > 1) return { "stroke-dasharray": `7 ${7 * (alike.length - 1)}`, "stroke-dashoffset": -7 * alike.indexOf(i) };
    return curves[i].variant === "regular" ? {} : { "stroke-dasharray": "6 4" };
  });
}

export class Chart {
  /** tip(text | null, x, y) shows a sentence at a place of the window. open(curve, point) shows samples. */
  constructor(title, tip, open) {
    Object.assign(this, { title, tip, open, curves: [], view: {}, zoom: null, places: [], at: -1 });
    this.card = document.createElement("article");
    this.card.className = "chart";
    const head = this.card.appendChild(document.createElement("header"));
    head.appendChild(document.createElement("h3")).textContent = title;
    const tools = head.appendChild(document.createElement("div"));
    this.reset = button("reset", "Reset", "Show the whole chart again (key 0)", tools, () => this.zoomTo(null));
    button("png", "PNG", "Save the chart as a PNG image", tools, () => savePng(this));
    button("svg", "SVG", "Save the chart as an SVG image", tools, () => saveSvg(this));
    button("csv", "CSV", "Save the numbers as CSV", tools, () => saveCsv(title, this.rows()));
    this.legend = this.card.appendChild(document.createElement("p"));
    this.legend.className = "legend";
    this.note = this.card.appendChild(document.createElement("p"));
    this.note.className = "note";
    this.svg = element("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", tabindex: "0" }, this.card);
    this.listen();
  }

  /** curves: as Run.curves() gives them. view: {x, log, smooth}. */
  draw(curves, view) {
    if (view.x !== this.view.x) this.zoom = null; // It was in units of the axis before.
    Object.assign(this, { curves, view: { ...view }, axis: AXES[view.x] ?? AXES.step });
    this.render();
  }

  zoomTo(zoom) {
    this.zoom = zoom;
    this.render();
  }

  /** The numbers of the chart, for CSV. */
  rows() {
    const head = ["run", "variant", "step", "epoch", "finished", "value", "std_error"];
    const rows = this.curves.flatMap((curve) => curve.points.map((point) => [curve.run, curve.variant, point.step, point.epoch,
      point.at === undefined ? undefined : new Date(point.at).toISOString(), point.value, point.error]));
    return [head, ...rows];
  }

  render() {
    const { curves, axis, view } = this;
    const shows = (point) => Number.isFinite(point.value) && (!view.log || point.value > 0);
    const placed = curves.map((curve) => {
      const on = (points) => points.map((point) => ({ curve, point, at: axis.of(point, curve) })).filter((one) => Number.isFinite(one.at));
      const points = on(curve.points.filter(shows)).sort((a, b) => a.at - b.at);
      return { points, gaps: on([...curve.gaps, ...curve.points.filter((point) => !shows(point))]) };
    });
    const across = this.zoom ?? range(placed.flatMap((one) => [...one.points, ...one.gaps]).map((one) => one.at), 0.02);
    const inside = placed.flatMap((one) => one.points.filter(({ at }) => at >= across[0] && at <= across[1]));
    const ends = inside.flatMap(({ point }) => [point.value, point.low ?? point.value, point.high ?? point.value]);
    const up = view.log ? range(ends.filter((end) => end > 0).map(Math.log10), 0.06).map((end) => 10 ** end) : range(ends.filter(Number.isFinite), 0.06);
    this.domain = across;
    this.x = scale(across, 0, PLOT_WIDTH);
    this.y = scale(up, PLOT_HEIGHT, 0, view.log);
    this.svg.replaceChildren();
    this.drawAxes(across, up);
    this.plot = element("svg", { x: LEFT, y: TOP, width: PLOT_WIDTH, height: PLOT_HEIGHT, class: "plot" }, this.svg);
    this.drawCurves(placed.map((one) => one.points));
    for (const { at, point } of placed.flatMap((one) => one.gaps)) {
      element("path", { d: line([[this.x(at), PLOT_HEIGHT - 8], [this.x(at), PLOT_HEIGHT]]), class: `gap ${point.state ?? "dead"}` }, this.plot);
    }
    this.places = placed.flatMap((one) => [
      ...one.points.map((place) => ({ ...place, x: this.x(place.at), y: this.y(place.point.value) })),
      ...one.gaps.map((place) => ({ ...place, x: this.x(place.at), y: PLOT_HEIGHT }))]).sort((a, b) => a.x - b.x);
    this.tell(placed);
  }

  drawAxes(across, up) {
    const bottom = HEIGHT - BOTTOM;
    const hasValues = this.curves.some((curve) => curve.points.length > 0);
    for (const at of !hasValues ? [] : this.view.log ? logTicks(up) : ticks(up, 5)) {
      const y = TOP + this.y(at);
      element("path", { d: line([[LEFT, y], [WIDTH - RIGHT, y]]), class: "grid" }, this.svg);
      element("text", { x: LEFT - 6, y: y + 3.5, "text-anchor": "end" }, this.svg).textContent = short(Number(at.toPrecision(6)));
    }
    for (const at of ticks(across, 5, this.axis.time)) {
      if ((this.axis.whole && at !== Math.round(at)) || (at < 0 && this.view.x !== "clock")) continue;
      const x = LEFT + this.x(at);
      const place = x > WIDTH - 24 ? { x: WIDTH - 2, "text-anchor": "end" } : { x, "text-anchor": "middle" };
      element("text", { ...place, y: bottom + 18 }, this.svg).textContent = this.axis.tick(at, across[1] - across[0]);
    }
  }

  drawCurves(placed) {
    const lines = placed.map((points) => points.map(({ at, point }) => [this.x(at), this.y(point.value)]));
    const dashes = dashesOf(lines, this.curves);
    placed.forEach((points, i) => {
      const curve = this.curves[i], best = bestOf(curve), raw = this.view.smooth > 0 && points.length > 2;
      this.drawBands(points, curve.colour);
      element("path", { d: line(lines[i]), class: raw ? "curve raw" : "curve", stroke: curve.colour, ...dashes[i] }, this.plot);
      if (raw) {
        const values = smoothed(points.map(({ point }) => point.value), this.view.smooth);
        element("path", { d: line(points.map(({ at }, k) => [this.x(at), this.y(values[k])])), class: "curve smooth", stroke: curve.colour, ...dashes[i] }, this.plot);
      }
      for (const { at, point } of this.marked(points)) {
        const shape = { d: markPath(curve.mark, this.x(at), this.y(point.value), point.differs ? 3.4 : 2.8), class: raw ? "point raw" : "point" };
        if (point.differs) element("path", { ...shape, stroke: curve.colour, class: `${shape.class} differs` }, this.plot);
        else element("path", { ...shape, fill: curve.colour }, this.plot);
      }
      const place = best && points.find(({ point }) => point === best);
      if (place) element("path", { d: markPath(0, this.x(place.at), this.y(best.value), 6.5), stroke: curve.colour, class: "best" }, this.plot);
    });
  }

  /** The points of a curve that get a mark. */
  marked(points) {
    const inView = points.filter(({ at }) => at >= this.domain[0] && at <= this.domain[1]);
    let last = -Infinity;
    return inView.length <= POINTS_MARKED ? inView : inView.filter(({ at, point }) => {
      const isFree = point.differs && this.x(at) - last >= MARK_SPACE;
      if (isFree) last = this.x(at);
      return isFree;
    });
  }

  /** Shades the 95 % intervals. An interval without a neighbour becomes a bar. */
  drawBands(points, colour) {
    const low = ({ point }) => (this.view.log && point.low <= 0 ? PLOT_HEIGHT : this.y(point.low));
    const side = (part, end) => part.map((place) => [this.x(place.at), end(place)]);
    const parts = banded(points), high = ({ point }) => this.y(point.high);
    const areas = parts.filter((part) => part.length > 1).map((part) => `${line([...side(part, high), ...side(part, low).reverse()])}Z`);
    const bars = parts.filter((part) => part.length === 1).map(([place]) => {
      const x = this.x(place.at), [bottom, top] = [low(place), high(place)];
      return line([[x, bottom], [x, top]]) + line([[x - 3, bottom], [x + 3, bottom]]) + line([[x - 3, top], [x + 3, top]]);
    });
    if (areas.length) element("path", { d: areas.join(""), class: "band", fill: colour }, this.plot);
    if (bars.length) element("path", { d: bars.join(""), class: "bars", stroke: colour }, this.plot);
  }

  /** Says what shades and hollow marks mean, if there are some. */
  explanations() {
    const points = this.curves.flatMap((curve) => curve.points), parts = [];
    if (points.some((point) => point.low !== undefined)) parts.push("shaded: 95 % interval");
    if (points.some((point) => point.differs)) {
      const entry = document.createElement("span"), key = element("svg", { viewBox: "0 0 12 12", class: "key", "aria-hidden": "true" }, entry);
      element("path", { d: markPath(0, 6, 6, 4), class: "point differs", stroke: "currentColor" }, key);
      entry.append("hollow: differs significantly from the best");
      parts.push(entry);
    }
    return parts.flatMap((part) => [" · ", part]);
  }

  /** The legend, the notes, and the words for people who do not see the chart. */
  tell(placed) {
    const { curves, view } = this;
    this.legend.replaceChildren(...curves.flatMap((curve, i) => {
      const entry = document.createElement("span"), name = entry.appendChild(document.createElement("span"));
      const key = element("svg", { viewBox: "0 0 12 12", class: "key", "aria-hidden": "true" }, name);
      element("path", { d: markPath(curve.mark, 6, 6, 4), fill: curve.colour }, key);
      name.className = "name";
      name.append(curve.name);
      entry.append(summary(curve).slice(curve.name.length));
      return i ? [" · ", entry] : [entry];
    }), ...this.explanations());
    const hidden = curves.flatMap((curve) => curve.points).filter((point) => view.log && Number.isFinite(point.value) && point.value <= 0).length;
    const notes = [];
    if (hidden) notes.push(`${hidden} ${hidden === 1 ? "value is" : "values are"} not above 0 and cannot be drawn on a log scale.`);
    if (curves.some((curve) => curve.points.length) && !placed.some((one) => one.points.length || one.gaps.length)) notes.push(`No result has a value for the x axis “${view.x}”.`);
    const failures = placed.flatMap((one) => one.gaps).filter(({ point }) => point.state);
    if (failures.length && !placed.some((one) => one.points.length)) notes.push(sentence(failures.at(-1).curve, failures.at(-1).point));
    this.note.textContent = notes.join(" ");
    this.note.hidden = notes.length === 0;
    this.reset.hidden = this.zoom === null;
    this.svg.setAttribute("aria-label", `${this.title}. ${curves.map(summary).join(" · ")} Arrow keys go through the points, plus and minus zoom, 0 shows all.`);
  }

  /** Where an event of the pointer lies in the plot. */
  place(event) {
    const box = this.svg.getBoundingClientRect();
    return { x: ((event.clientX - box.left) / box.width) * WIDTH - LEFT, y: ((event.clientY - box.top) / box.height) * HEIGHT - TOP };
  }

  /** The point or gap nearest to an event of the pointer; null: none is near. */
  nearest(event) {
    const { x, y } = this.place(event);
    let nearest = null, least = NEAR ** 2;
    for (const place of this.places) {
      const distance = (place.x - x) ** 2 + (place.y - y) ** 2;
      if (distance < least) [nearest, least] = [place, distance];
    }
    return nearest;
  }

  valueAt(x) {
    const [low, high] = this.domain;
    return low + (Math.min(Math.max(x, 0), PLOT_WIDTH) / PLOT_WIDTH) * (high - low);
  }

  listen() {
    let drag = null; // {from, area} while a range is dragged.
    this.svg.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || !this.plot) return;
      drag = { from: this.place(event).x, area: element("rect", { y: 0, height: PLOT_HEIGHT, class: "area" }, this.plot) };
      this.svg.setPointerCapture?.(event.pointerId);
    });
    this.svg.addEventListener("pointermove", (event) => {
      const { x } = this.place(event);
      if (drag) {
        drag.area.setAttribute("x", Math.min(x, drag.from));
        drag.area.setAttribute("width", Math.abs(x - drag.from));
        this.tip(null);
        return;
      }
      const nearest = this.nearest(event);
      this.tip(nearest && sentence(nearest.curve, nearest.point), event.clientX, event.clientY);
    });
    const drop = (event) => {
      if (!drag) return;
      const { from, area } = drag, to = this.place(event).x;
      drag = null;
      area.remove();
      if (event.type === "pointerup" && Math.abs(to - from) > DRAG) {
        this.zoomTo([this.valueAt(Math.min(from, to)), this.valueAt(Math.max(from, to))]);
      } else if (event.type === "pointerup") {
        const place = this.nearest(event);
        if (place?.point.samples) this.open(place.curve, place.point);
      }
    };
    this.svg.addEventListener("pointerup", drop);
    this.svg.addEventListener("pointercancel", drop);
    this.svg.addEventListener("pointerleave", () => this.tip(null));
    this.svg.addEventListener("dblclick", () => this.zoomTo(null));
    this.svg.addEventListener("blur", () => this.tip(null));
    this.svg.addEventListener("keydown", (event) => this.onKey(event));
  }

  onKey(event) {
    const [low, high] = this.domain, shown = this.places.filter((place) => place.x >= 0 && place.x <= PLOT_WIDTH);
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "ArrowRight" || event.key === "ArrowLeft") {
      if (!shown.length) return;
      this.at = Math.min(Math.max(this.at + (event.key === "ArrowRight" ? 1 : -1), 0), shown.length - 1);
      const { curve, point, x, y } = shown[this.at], box = this.svg.getBoundingClientRect();
      this.tip(sentence(curve, point), box.left + ((x + LEFT) / WIDTH) * box.width, box.top + ((y + TOP) / HEIGHT) * box.height);
    } else if (event.key === "Enter" && shown[this.at]?.point.samples) {
      this.open(shown[this.at].curve, shown[this.at].point);
    } else if (event.key === "+" || event.key === "-") {
      const middle = shown[this.at]?.at ?? (low + high) / 2, half = ((high - low) / 2) * (event.key === "+" ? 0.5 : 2);
      this.zoomTo([middle - half, middle + half]);
    } else if (event.key === "0" || (event.key === "Escape" && this.zoom)) {
      this.zoomTo(null);
    } else return;
    event.preventDefault();
  }
}
