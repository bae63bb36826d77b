// Runs: which are shown, their charts, and the table of best and last values.
import { Chart } from "/page/chart.js";
import { bestOf, chartsOf, Run } from "/page/curves.js";
import { saveCsv } from "/page/export.js";
import { call } from "/page/gateway.js";
import { lookOf } from "/page/run_colours.js";
import { samplesAddress } from "/page/address.js";
import { make, showChips } from "/page/elements.js";
import { short } from "/page/scale.js";
import { learnSignificance } from "/page/significance.js";

const NEWEST_SHOWN = 3, LISTED = 100, VIEW = "evalq-view";
const at = (id) => document.getElementById(id);

const runs = new Map(); // Name -> Run, of the runs whose results were loaded.
const charts = new Map(); // Key -> {chart, as}: `as` tells which results and view it shows.
const view = { x: "step", log: false, smooth: 0, ...JSON.parse(localStorage.getItem(VIEW) ?? "{}") };
let listed = []; // The runs in the reply of /v1/runs, newest first.
let chosen = null; // The names in the address; null: the newest runs.
let onToggle = () => {}, tip = () => {}, goes = Promise.resolve(), again = false;

const isListed = (name) => listed.some((entry) => entry.run === name);
export const entryOf = (name) => listed.find((entry) => entry.run === name);

/** The names of the runs that are shown. */
function shown() {
  return chosen ?? listed.slice(0, NEWEST_SHOWN).map((entry) => entry.run);
}

function visible() {
  return shown().map((name) => runs.get(name)).filter((run) => run);
}

function showSamplesOf({ run, variant, suite, task }, { step }) {
  location.hash = samplesAddress({ run, step, variant, suite, task });
}

/** Learns the significance of what is shown, and draws it. */
function judge() {
  const shows = !["samples", "checkpoints"].includes(document.body.dataset.view);
  if (shows) learnSignificance(visible, drawCharts).catch(() => {}); // It is asked again later.
}

function drawCharts() {
  const all = visible(), wanted = chartsOf(all), box = at("charts");
  for (const key of charts.keys()) if (!wanted.some((one) => one.key === key)) charts.delete(key);
  wanted.forEach(({ key, title }, place) => {
    const as = JSON.stringify([view, all.map((run) => [run.name, run.version(key)])]);
    if (!charts.has(key)) charts.set(key, { chart: new Chart(title, tip, showSamplesOf) });
    const entry = charts.get(key);
    if (entry.as !== as) {
      entry.as = as;
      entry.chart.draw(all.flatMap((run) => run.curves(key, lookOf(run.name))), view);
    }
    const there = box.children[place];
    if (!there) box.append(entry.chart.card);
    else if (there !== entry.chart.card) box.insertBefore(entry.chart.card, there);
  });
  while (box.children.length > wanted.length) box.lastChild.remove();
  at("view-controls").hidden = at("values").hidden = wanted.length === 0;
  if (at("values").open) drawValues();
}

/** Rows of the table: one for each metric, run and variant. */
function valueRows() {
  const all = visible();
  return chartsOf(all).flatMap(({ key, title }) => all.flatMap((run) => run.curves(key, lookOf(run.name))).map((curve) => {
    const best = bestOf(curve), last = curve.points.at(-1);
    return { curve, cells: [title, curve.name, best?.value, best?.step, last?.value, last?.step, curve.points.length] };
  }));
}

function drawValues() {
  at("value-table").tBodies[0].replaceChildren(...valueRows().map(({ curve, cells }) => {
    const row = document.createElement("tr");
    row.append(...cells.map((value, i) => make("td", value === undefined ? "–" : i === 2 || i === 4 ? short(value) : typeof value === "number" ? value.toLocaleString("en") : i === 1 ? "" : value)));
    const link = row.children[1].appendChild(make("a", curve.name));
    link.href = `#/run/${encodeURIComponent(curve.run)}`;
    return row;
  }));
}

function drawList() {
  const chips = listed.slice(0, LISTED).map((entry) => {
    const open = (entry.counts.queued ?? 0) + (entry.counts.delayed ?? 0) + (entry.counts.running ?? 0);
    const notes = [`${entry.counts.done ?? 0} done`, ...(open ? [`${open} open`] : []), ...(entry.counts.dead ? [`${entry.counts.dead} dead`] : []), ...(entry.paused ? ["paused"] : [])];
    return { name: entry.run, colour: lookOf(entry.run).colour, note: notes.join(", ") };
  });
  const names = shown();
  showChips(at("run-list"), chips, (name) => names.includes(name), (name) => {
    onToggle(names.includes(name) ? names.filter((one) => one !== name) : [...names, name]);
  });
  at("runs-empty").hidden = listed.length > 0;
  at("runs-more").hidden = listed.length <= LISTED;
}

/** Loads what is new of the runs that are shown. A page of results may be empty if retention removed what was on it. */
async function loadShown() {
  do {
    again = false;
    for (const name of shown().filter(isListed)) {
      if (!runs.has(name)) runs.set(name, new Run(name));
      const run = runs.get(name);
      for (;;) {
        const page = await call(`/v1/runs/${encodeURIComponent(name)}/results?cursor=${run.cursor}`);
        page.results.forEach((record) => run.take(record));
        if (page.cursor === run.cursor) break;
        run.cursor = page.cursor;
      }
      drawCharts();
    }
  } while (again);
  drawCharts();
  judge();
}

/** The steps of a run that have samples of a task; the run must be shown. */
export const stepsWithSamples = (run, place) => runs.get(run)?.sampleSteps(place) ?? [];
/** The newest samples of a run that is shown; null: it has none. */
export const newestSamples = (run) => runs.get(run)?.newestSamples() ?? null;

/** Loads results. Only one load runs at a time; a call during a load makes it load once more. */
function loadResults() {
  again = true;
  goes = goes.catch(() => {}).then(() => (again ? loadShown() : undefined));
  return goes;
}

export async function loadRuns() {
  listed = (await call("/v1/runs")).runs;
  for (const name of runs.keys()) if (!shown().includes(name) || !isListed(name)) runs.delete(name);
  drawList();
  await loadResults();
}

/** Takes a result or an end from the stream of events. false: its run is not known yet. */
export function takeRecord(record) {
  runs.get(record.run)?.take(record);
  if (record.samples_digest) judge();
  return isListed(record.run);
}

export const forgetAll = () => runs.clear();
export const redraw = drawCharts;

/** Shows these runs; null: the newest. */
export function showRuns(names) {
  chosen = names;
  drawList();
  drawCharts();
  return loadResults();
}

function changeView(change) {
  Object.assign(view, change);
  localStorage.setItem(VIEW, JSON.stringify(view));
  showView();
  drawCharts();
}

function showView() {
  at("view-x").value = view.x;
  at("view-log").checked = view.log;
  at("view-smooth").value = view.smooth;
  at("view-smooth-value").textContent = view.smooth ? view.smooth.toFixed(2) : "off";
}

/** toggled(names) is called when somebody chooses other runs; showTip(text | null, x, y) shows a tip. */
export function startRuns(toggled, showTip) {
  [onToggle, tip] = [toggled, showTip];
  at("view-x").addEventListener("change", (event) => changeView({ x: event.target.value }));
  at("view-log").addEventListener("change", (event) => changeView({ log: event.target.checked }));
  at("view-smooth").addEventListener("input", (event) => changeView({ smooth: Number(event.target.value) }));
  at("values").addEventListener("toggle", drawValues);
  at("values-csv").addEventListener("click", () => {
    const head = ["metric", "run", "best", "best_step", "last", "last_step", "results"];
    saveCsv("best and last values", [head, ...valueRows().map((row) => row.cells)]);
  });
  showView();
}
