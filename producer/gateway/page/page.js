// The page: reads the address, shows what it names, and asks the gateway again when something changed.
import { readAddress, samplesAddress } from "/page/address.js";
import { showCheckpoints, startCheckpoints } from "/page/compare.js";
import { call, follow, takeKey, token, errorText } from "/page/gateway.js";
import { closeJob, jobChanged, openJob } from "/page/job.js";
import { loadJobs, pause, showJobsOf, shownCount, showStates, startJobs } from "/page/jobs.js";
import { make } from "/page/elements.js";
import { showNumbers, showSinks, showWorkers } from "/page/panels.js";
import { entryOf, forgetAll, loadRuns, newestSamples, redraw, showRuns, startRuns, stepsWithSamples, takeRecord } from "/page/runs.js";
import { samplesChanged, showSamples, startSamples } from "/page/samples.js";

const REFRESH_MS = 5000, JOBS_REFRESHED = 50;
const at = (id) => document.getElementById(id);
let came = false; // Whether the address changed since the page was opened: then there is a way back.
let queuePaused = false, view = { name: "overview", runs: null };

function tip(text, x, y) {
  const box = at("tip");
  box.hidden = !text;
  if (!text) return;
  box.textContent = text;
  box.style.left = `${Math.max(Math.min(x + 14, innerWidth - box.offsetWidth - 8), 4)}px`;
  box.style.top = `${Math.max(y - box.offsetHeight - 12, 4)}px`;
}

function notice(text) {
  if (at("notice").textContent !== text) at("notice").textContent = text;
  at("notice").hidden = !text;
}

/** Runs work once for many calls within wait ms, and once more for those that come while it runs. */
function soon(work, wait) {
  let timer = null, again = false;
  const start = () => {
    again = timer !== null;
    timer ??= setTimeout(async () => {
      again = false;
      await Promise.resolve().then(work).catch((error) => notice(errorText(error)));
      timer = null;
      if (again) start();
    }, wait);
  };
  return start;
}

const soonCharts = soon(redraw, 150);
const soonRuns = soon(async () => {
  await loadRuns();
  showTitle();
  samplesChanged();
}, 600);
const soonStats = soon(loadStats, 300);
const soonJobs = soon(() => loadJobs(), 500);
const changed = () => (soonStats(), soonJobs(), soonRuns());

/** Shows what the address names. A job is a dialog over what was shown before it. */
function go() {
  const next = readAddress(location.hash);
  if (next.name === "job") {
    openJob(next.job, changed, () => (came ? history.back() : (location.hash = "#/")));
    return;
  }
  closeJob();
  view = next;
  document.body.dataset.view = view.name;
  showTitle();
  showJobsOf(view.name === "run" ? view.runs[0] : "");
  if (view.name === "samples") showSamples(view);
  if (view.name === "checkpoints") showCheckpoints(view);
  const runs = view.runs ?? (view.name === "samples" ? [view.run] : view.name === "checkpoints" ? [] : null);
  showRuns(runs).then(() => (showTitle(), samplesChanged()), (error) => notice(errorText(error)));
}

function action(label, parent, work) {
  const made = parent.appendChild(make("button", label, "write"));
  made.type = "button";
  made.addEventListener("click", () => work().then(changed, (error) => notice(errorText(error))));
}

function showTitle() {
  const run = view.name === "run" ? view.runs[0] : null, entry = run && entryOf(run), box = at("run-actions");
  const newest = run && newestSamples(run);
  at("runs-title").textContent = run ? `Run ${run}` : view.name === "compare" ? `Runs: ${view.runs.length} chosen` : "Runs";
  at("run-missing").hidden = !run || Boolean(entry) || document.body.classList.contains("loading");
  at("run-missing").textContent = `The queue has no run “${run}”, or it is older than the newest 1,000.`;
  box.replaceChildren();
  if (view.name !== "overview") box.appendChild(make("a", "Newest runs")).href = "#/";
  if (!run) return;
  box.appendChild(make("a", "Compare")).href = `#/compare/${encodeURIComponent(run)}`;
  if (newest) box.appendChild(make("a", "Samples")).href = samplesAddress(newest);
  if (!entry) return;
  box.append(make("small", Object.entries(entry.counts).filter(([, count]) => count > 0).map(([state, count]) => `${count} ${state}`).join(", ")));
  const isPaused = Boolean(entry.paused);
  action(isPaused ? "Resume run" : "Pause run", box, () => pause("run", run, !isPaused));
}

async function loadStats() {
  const stats = await call("/v1/queue");
  queuePaused = stats.paused.queue;
  showNumbers(at("numbers"), at("waiting"), stats);
  showWorkers(at("worker-list"), at("workers-empty"), stats.workers);
  showSinks(at("sink-table").tBodies[0], at("sinks-empty"), stats.sinks);
  showStates((view.name === "run" && entryOf(view.runs[0])?.counts) || stats.states);
  at("queue-pause").textContent = queuePaused ? "Resume queue" : "Pause queue";
  notice("");
}

function onEvent(kind, data) {
  if (kind === "result" || kind === "end") {
    if (takeRecord(data)) soonCharts();
    else soonRuns();
  }
  if (kind === "reset") forgetAll();
  if (kind === "reset" || kind === "end") soonRuns();
  if (kind !== "result") {
    soonStats();
    soonJobs();
    jobChanged();
  }
}

function showWelcome(needed) {
  at("welcome").hidden = !needed;
  at("content").hidden = needed;
}

function onState(which, sentence, code) {
  const refused = code === 401 || code === 403;
  at("live").className = `badge ${which}`;
  at("live").textContent = refused ? "needs a key" : sentence;
  at("token-button").hidden = at("token-forget").hidden = !token.get();
  if (refused) {
    showWelcome(true);
    at("token-answer").textContent = token.get() ? "The gateway does not accept the key that this browser has. It changes when evalq up is started again." : "";
  }
}

async function loadAll() {
  const [ready, access] = await Promise.all([call("/readyz"), call("/v1/access")]);
  showWelcome(false);
  at("queue-name").textContent = ready.queue;
  document.title = `evalq ${ready.queue}`;
  document.body.classList.toggle("can-write", access.write);
  await Promise.all([loadStats(), loadRuns(), loadJobs()]);
  document.body.classList.remove("loading");
  showTitle();
  samplesChanged();
}

at("token-button").addEventListener("click", () => {
  showWelcome(at("welcome").hidden);
  at("token-input").focus();
});
at("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const typed = at("token-input").value.trim();
  if (event.submitter?.value === "forget") token.forget();
  else if (typed) token.set(typed);
  else return;
  location.reload();
});
at("queue-pause").addEventListener("click", () => pause("queue", "", !queuePaused).then(changed, (error) => notice(errorText(error))));
addEventListener("hashchange", () => {
  if (takeKey()) location.reload();
  came = true;
  go();
});

takeKey();
startJobs(changed);
startCheckpoints();
startSamples(stepsWithSamples);
startRuns((names) => (location.hash = `#/compare/${names.map(encodeURIComponent).join(",")}`), tip);
go();
follow({ onEvent, onState, onOpen: () => loadAll().catch((error) => notice(errorText(error))) });
setInterval(() => {
  if (document.hidden || document.body.classList.contains("loading")) return;
  soonStats();
  soonRuns(); // No event says that a run was submitted or forgotten.
  if (shownCount() <= JOBS_REFRESHED) soonJobs(); // Not while somebody reads further pages.
}, REFRESH_MS);
