// The page: what is shown, and when it is asked for anew.
import { chart } from "/page/chart.js";
import { chartsOf, Run } from "/page/curves.js";
import { call, follow, told, token } from "/page/gateway.js";
import { jobChanged, openJob } from "/page/job.js";
import { showChips, showJobs, showNumbers, showSinks, showWorkers, STATES } from "/page/panels.js";

// Each at 3 to 1 or more on light and on dark cards.
const COLOURS = ["#2f7de1", "#e0662b", "#2a9963", "#b558c9", "#a8850f", "#d94b6a", "#1b93a3", "#967657"];
const RUNS_SHOWN = 3, RUNS_LISTED = 100, JOBS_PAGE = 50, JOBS_MAX = 1000, LOOK_MS = 5000;
const at = (id) => document.getElementById(id);

const runs = new Map(); // Name -> Run, of those whose results were asked for.
const colours = new Map(); // Name -> colour, for good.
const shown = new Set(); // Names of runs.
const drawn = new Map(); // Chart -> {as, card}: its element, and the versions that it shows.
let chosen = false; // Somebody chose runs: new ones are not shown by themselves.
let listed = []; // As /v1/runs tells.
let state = ""; // Of the jobs shown; "": all.
let jobs = [], cursor = "";

function tip(text, x, y) {
  const box = at("tip");
  box.hidden = !text;
  if (!text) return;
  box.textContent = text;
  box.style.left = `${Math.min(x + 14, innerWidth - box.offsetWidth - 8)}px`;
  box.style.top = `${Math.max(y - box.offsetHeight - 12, 4)}px`;
}

function notice(text) {
  at("notice").textContent = text;
  at("notice").hidden = !text;
}

/** Runs work once for many calls within wait ms, and once more for those that come while it runs. */
function soon(work, wait) {
  let timer = null, again = false;
  const start = () => {
    again = timer !== null;
    timer ??= setTimeout(async () => {
      again = false;
      await Promise.resolve().then(work).catch((error) => notice(told(error)));
      timer = null;
      if (again) start();
    }, wait);
  };
  return start;
}

function colourOf(name) {
  if (!colours.has(name)) colours.set(name, COLOURS[colours.size % COLOURS.length]);
  return colours.get(name);
}

function drawCharts() {
  const visible = listed.map((entry) => runs.get(entry.run)).filter((run) => run && shown.has(run.name));
  const box = at("charts"), charts = chartsOf(visible);
  for (const key of drawn.keys()) if (!charts.some((one) => one.key === key)) drawn.delete(key);
  charts.forEach(({ key, title }, place) => {
    const as = visible.map((run) => `${run.name} ${run.version(key)}`).join();
    if (drawn.get(key)?.as !== as) {
      drawn.set(key, { as, card: chart(title, visible.flatMap((run) => run.curves(key, colourOf(run.name))), tip) });
    }
    const card = drawn.get(key).card, there = box.children[place];
    if (!there) box.append(card);
    else if (there !== card) there.replaceWith(card);
  });
  while (box.children.length > charts.length) box.lastChild.remove();
}

function drawRuns() {
  at("runs-empty").hidden = listed.length > 0;
  at("runs-more").hidden = listed.length <= RUNS_LISTED;
  const chips = listed.slice(0, RUNS_LISTED).map((entry) => {
    const open = (entry.counts.queued ?? 0) + (entry.counts.delayed ?? 0) + (entry.counts.running ?? 0);
    const done = entry.counts.done ?? 0;
    return { name: entry.run, colour: colourOf(entry.run), note: open ? `${done} done, ${open} open` : `${done} done` };
  });
  showChips(at("run-list"), chips, (name) => shown.has(name), (name) => {
    chosen = true;
    if (!shown.delete(name)) shown.add(name);
    drawRuns();
    loadResults().catch((error) => notice(told(error)));
  });
}

const isListed = (name) => listed.some((entry) => entry.run === name);

/** Results of the runs that are shown, from where each was left. A page is empty where retention took what was on it. */
async function loadResults() {
  for (const name of [...shown].filter(isListed)) {
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
  drawCharts();
}

async function loadRuns() {
  listed = (await call("/v1/runs")).runs;
  if (!chosen) {
    for (const { run } of listed.slice(0, RUNS_SHOWN).reverse()) {
      shown.delete(run);
      shown.add(run); // At the end: who was among the newest last.
    }
    for (const run of [...shown].slice(0, -COLOURS.length)) shown.delete(run);
  }
  for (const name of runs.keys()) if (!shown.has(name) || !isListed(name)) runs.delete(name);
  drawRuns();
  await loadResults();
}

async function loadStats() {
  const stats = await call("/v1/queue");
  showNumbers(at("numbers"), at("waiting"), stats);
  showWorkers(at("worker-list"), at("workers-empty"), stats.workers);
  showSinks(at("sink-table").tBodies[0], at("sinks-empty"), stats.sinks);
  const chips = [{ name: "", label: "all" }, ...STATES.map((name) => ({ name, note: String(stats.states[name] ?? 0) }))];
  showChips(at("states"), chips, (name) => name === state, (name) => {
    state = name;
    jobs = [];
    loadStats().then(() => loadJobs()).catch((error) => notice(told(error)));
  });
  notice("");
}

/** The next page of jobs, or all that are listed anew. */
async function loadJobs(more = false) {
  const count = more ? JOBS_PAGE : Math.min(Math.max(jobs.length, JOBS_PAGE), JOBS_MAX);
  const asked = new URLSearchParams({ state, count: String(count), cursor: more ? cursor : "" });
  const page = await call(`/v1/jobs?${asked}`);
  jobs = more ? [...jobs, ...page.jobs] : page.jobs;
  cursor = page.cursor;
  showJobs(at("job-table").tBodies[0], at("jobs-empty"), jobs, (id) => openJob(id, () => (soonStats(), soonJobs())));
  at("jobs-more").hidden = cursor === "";
}

const soonCharts = soon(drawCharts, 150);
const soonRuns = soon(loadRuns, 600);
const soonStats = soon(loadStats, 300);
const soonJobs = soon(() => loadJobs(), 500);

function onEvent(kind, data) {
  if (kind === "result" || kind === "end") {
    runs.get(data.run)?.take(data);
    if (runs.has(data.run)) soonCharts();
    else if (!isListed(data.run)) soonRuns();
  }
  if (kind === "reset") runs.clear();
  if (kind === "reset" || kind === "end") soonRuns();
  if (kind !== "result") {
    soonStats();
    soonJobs();
    jobChanged();
  }
}

function onState(which, sentence, code) {
  at("live").className = `badge ${which}`;
  at("live").textContent = sentence;
  at("token-button").hidden = !(code === 401 || code === 403 || token.get());
  if (code === 401 || code === 403) notice(`${sentence}. Give a token that may read.`);
}

at("token-button").addEventListener("click", () => at("token").showModal());
at("token").addEventListener("close", () => {
  const answer = at("token").returnValue;
  if (answer === "ok" && at("token-input").value) token.set(at("token-input").value.trim());
  if (answer === "forget") token.set("");
  if (answer === "ok" || answer === "forget") location.reload();
});
at("jobs-more").addEventListener("click", () => loadJobs(true).catch((error) => notice(told(error))));

async function loadAll() {
  const ready = await call("/readyz");
  at("queue-name").textContent = ready.queue;
  document.title = `evalq ${ready.queue}`;
  await Promise.all([loadStats(), loadRuns(), loadJobs()]);
}

follow({ onEvent, onState, onOpen: () => loadAll().catch((error) => notice(told(error))) });
setInterval(() => {
  if (document.hidden) return;
  soonStats();
  soonRuns(); // No event tells of one that was submitted or forgotten.
  if (jobs.length <= JOBS_PAGE) soonJobs(); // Not while somebody leafs through them.
}, LOOK_MS);
