// The table of jobs: grouped by run, searched, filtered by state, and changed one by one or many at once.
import { call, jobPath, shortReason, errorText } from "/page/gateway.js";
import { make, renew, showChips } from "/page/elements.js";

const STATES = ["running", "queued", "delayed", "dead", "skipped", "cancelled", "done"];

const PAGE = 50, PAGE_MAX = 100, JOBS_MAX = 1000, CALLS = 4;
const OPEN = ["queued", "delayed", "running"], ENDED = ["dead", "skipped", "cancelled"];
const COLOURS = { running: "good", dead: "bad", skipped: "warn", cancelled: "warn" };
const at = (id) => document.getElementById(id);

let jobs = [], cursor = "", state = "", run = "", chosen = new Set(), closed = new Set(), loads = 0;
let onChange = () => {};

export const shownCount = () => jobs.length;
const runOf = (id) => id.split("/")[0];
const textOf = (job) => [job.id, job.state, job.worker, reasonOf(job)].join(" ").toLowerCase();

/** Why a job waits or how it ended, in full. The short reason of a job is cut after 64 bytes. */
function reasonOf(job) {
  if (OPEN.includes(job.state)) return job.why || job.reason || (job.state === "running" ? job.status : "") || "";
  const short = shortReason(job.reason), cause = job.cause ?? "";
  if (cause && short.slice(0, 8) === cause.slice(0, 8)) return cause;
  return cause && short ? `${short}: ${cause}` : short || cause;
}

function stateText(job) {
  const done = Number(job.progress), total = Number(job.total);
  return job.state === "running" && done >= 0 && total > 0 ? `running, ${Math.floor((100 * done) / total)} %` : job.state;
}

function box(label, checked, key, onToggle) {
  const cell = make("td", "", "write"), input = cell.appendChild(document.createElement("input"));
  Object.assign(input, { type: "checkbox", checked });
  input.setAttribute("aria-label", label);
  input.dataset.key = key;
  input.addEventListener("change", () => onToggle(input.checked));
  return cell;
}

function choose(ids, on) {
  for (const id of ids) on ? chosen.add(id) : chosen.delete(id);
  show();
}

function jobRow(job) {
  const row = make("tr", "", "job"), name = document.createElement("td"), open = name.appendChild(make("a", "", "job-link"));
  const [, step, variant, suite] = job.id.split("/");
  open.href = `#/job/${job.id.split("/").map(encodeURIComponent).join("/")}`;
  open.dataset.key = job.id;
  open.title = job.id;
  open.textContent = `step ${step}${variant === "regular" ? "" : `, ${variant}`}, ${suite}`;
  row.append(box(`Select ${job.id}`, chosen.has(job.id), `box ${job.id}`, (on) => choose([job.id], on)), name,
    make("td", stateText(job), COLOURS[job.state] ?? ""), make("td", job.worker ?? ""), make("td", job.attempts ?? ""), make("td", reasonOf(job), "reason"));
  row.addEventListener("click", (event) => {
    if (!event.target.closest("input, a")) location.hash = open.hash;
  });
  return row;
}

function group(name, list) {
  const head = make("tr", "", "group"), cell = document.createElement("th"), ids = list.map((job) => job.id);
  cell.colSpan = 5;
  cell.scope = "rowgroup";
  const fold = cell.appendChild(make("button", closed.has(name) ? "▸" : "▾", "fold"));
  fold.type = "button";
  fold.dataset.key = `fold ${name}`;
  fold.setAttribute("aria-expanded", String(!closed.has(name)));
  fold.setAttribute("aria-label", `Jobs of ${name}`);
  fold.addEventListener("click", () => {
    if (!closed.delete(name)) closed.add(name);
    show();
  });
  const link = cell.appendChild(make("a", name));
  link.href = `#/run/${encodeURIComponent(name)}`;
  link.dataset.key = `run ${name}`;
  const counts = STATES.map((one) => [one, list.filter((job) => job.state === one).length]).filter(([, count]) => count);
  cell.append(make("small", counts.map(([one, count]) => `${count} ${one}`).join(", ")));
  head.append(box(`Select all jobs of ${name}`, ids.every((id) => chosen.has(id)), `box ${name}`, (on) => choose(ids, on)), cell);
  const body = document.createElement("tbody");
  body.append(head, ...(closed.has(name) ? [] : list.map(jobRow)));
  return body;
}

function show() {
  const words = at("job-search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const found = jobs.filter((job) => words.every((word) => textOf(job).includes(word)));
  const groups = new Map();
  for (const job of found) groups.set(runOf(job.id), [...(groups.get(runOf(job.id)) ?? []), job]);
  const table = at("job-table");
  for (const id of chosen) if (!found.some((job) => job.id === id)) chosen.delete(id); // A job that is not visible is not changed.
  renew(table, [table.tHead, ...[...groups].map(([name, list]) => group(name, list))]);
  table.hidden = found.length === 0;
  at("jobs-empty").hidden = found.length > 0;
  at("jobs-empty").textContent = words.length && jobs.length ? "No loaded job matches the search." : state ? `No job is ${state}.` : "There are no jobs yet.";
  at("jobs-more").hidden = cursor === "";
  at("job-bulk").hidden = chosen.size === 0;
  at("job-count").textContent = `${chosen.size} selected`;
}

/** Loads the jobs that are listed anew, or with `more` the next page. A search looks through more of them. */
export async function loadJobs(more = false) {
  const wanted = at("job-search").value ? JOBS_MAX : more ? jobs.length + PAGE : Math.min(Math.max(jobs.length, PAGE), JOBS_MAX);
  const list = more ? [...jobs] : [], load = ++loads;
  let next = more ? cursor : "";
  do {
    const asked = new URLSearchParams({ state, run, explain: "1", count: String(Math.min(wanted - list.length, PAGE_MAX)), cursor: next });
    const page = await call(`/v1/jobs?${asked}`);
    if (load !== loads) return; // Another state or run was chosen in between.
    list.push(...page.jobs);
    next = page.cursor;
  } while (next && list.length < wanted);
  [jobs, cursor] = [list, next];
  show();
}

export function showStates(counts) {
  const chips = [{ name: "", label: "all" }, ...STATES.map((name) => ({ name, note: String(counts[name] ?? 0) }))];
  showChips(at("states"), chips, (name) => name === state, (name) => {
    [state, jobs] = [name, []];
    showStates(counts);
    loadJobs().catch(fail);
  });
}

/** Lists the jobs of one run alone; "": of all. */
export function showJobsOf(name) {
  if (name === run) return;
  [run, jobs, cursor] = [name, [], ""];
  show();
  loadJobs().catch(fail);
}

function say(text) {
  at("job-said").textContent = text;
}

const fail = (error) => say(errorText(error));

/** Does the work for each, a few at a time, and says how many succeeded and why the first of the others did not. */
async function each(list, verb, work) {
  const queue = [...list], refusals = [];
  let done = 0;
  const worker = async () => {
    for (let one = queue.shift(); one !== undefined; one = queue.shift()) {
      await work(one).then(() => done++, (error) => refusals.push(`${one}: ${errorText(error)}`));
      say(`${done + refusals.length} of ${list.length} …`);
    }
  };
  await Promise.all(Array.from({ length: CALLS }, worker));
  say(`${verb}: ${done} of ${list.length}.${refusals.length ? ` Refused: ${refusals.length}. ${refusals[0]}` : ""}`);
  chosen = new Set();
  show();
  onChange();
}

const chosenIn = (states) => jobs.filter((job) => chosen.has(job.id) && states.includes(job.state)).map((job) => job.id);
const chosenRuns = () => [...new Set([...chosen].map(runOf))];
export const pause = (kind, name, paused) => call("/v1/pause", { kind, ...(name ? { name } : {}), paused });

/** changed() is called after jobs were changed here. */
export function startJobs(changed) {
  onChange = changed;
  let timer;
  at("job-search").addEventListener("input", () => {
    show();
    clearTimeout(timer);
    timer = setTimeout(() => cursor && loadJobs().catch(fail), 400);
  });
  at("jobs-more").addEventListener("click", () => loadJobs(true).catch(fail));
  at("bulk-cancel").addEventListener("click", () => each(chosenIn(OPEN), "Cancelled", (id) => call(`${jobPath(id)}/cancel`, {})));
  at("bulk-retry").addEventListener("click", () => each(chosenIn(ENDED), "Queued again", (id) => call(`${jobPath(id)}/retry`, {})));
  at("bulk-pause").addEventListener("click", () => each(chosenRuns(), "Paused runs", (name) => pause("run", name, true)));
  at("bulk-resume").addEventListener("click", () => each(chosenRuns(), "Resumed runs", (name) => pause("run", name, false)));
  at("bulk-clear").addEventListener("click", () => choose([...chosen], false));
}
