// One job in a dialog: what is known of it, the tail of its log, cancel and queue again.
import { call, jobPath, told as sentence } from "/page/gateway.js";
import { make } from "/page/panels.js";

const at = (id) => document.getElementById(id);
const OPEN = ["queued", "delayed", "running"], AGAIN = ["dead", "skipped", "cancelled"];
const FIELDS = ["run", "step", "variant", "suite", "priority", "attempts", "worker", "submitted", "started", "ended", "due", "progress", "total", "status", "fingerprint"];
const TIMES = ["submitted", "started", "ended", "due"], BANDS = ["urgent", "high", "normal", "backfill"];
let shown = null, onChanged = () => {};

function told(name, value) {
  if (TIMES.includes(name)) return new Date(Number(value)).toLocaleString();
  return name === "priority" ? BANDS[value] ?? value : String(value);
}

function fieldsOf(view) {
  const job = view.job ?? {}, message = view.message ?? {};
  const path = message.path ? `${message.root ? `${message.root}:` : ""}${message.path}` : "";
  const rows = FIELDS.filter((name) => job[name]).map((name) => [name, told(name, job[name])]);
  return [["state", job.state ?? "its record was removed"], ["reason", job.reason || view.why || ""], ["checkpoint", path], ...rows].filter(([, value]) => value !== "");
}

async function refresh() {
  const id = shown;
  const view = await call(jobPath(id));
  const log = await call(`${jobPath(id)}/log?bytes=16384`).catch(() => ({ log: "" }));
  if (shown !== id) return;
  at("job-fields").replaceChildren(...fieldsOf(view).flatMap(([name, value]) => [make("dt", name), make("dd", value)]));
  const pre = at("job-log"), follows = pre.scrollTop + pre.clientHeight >= pre.scrollHeight - 8;
  pre.textContent = log.log || "Nothing was written, or it lies on the worker's host alone.";
  if (follows) pre.scrollTop = pre.scrollHeight;
  at("job-cancel").disabled = !OPEN.includes(view.job?.state);
  at("job-retry").disabled = !AGAIN.includes(view.job?.state);
}

function tellFailure(error) {
  at("job-answer").textContent = sentence(error);
}

/** changed() is called when the dialog changed a job. */
export function openJob(id, changed) {
  shown = id;
  onChanged = changed;
  at("job-title").textContent = id;
  at("job-answer").textContent = "";
  at("job-fields").replaceChildren();
  at("job-log").textContent = "";
  at("job").showModal();
  refresh().catch(tellFailure);
}

/** Something changed: the dialog is brought up to date when it shows a job. */
export function jobChanged() {
  if (at("job").open && shown) refresh().catch(tellFailure);
}

async function change(verb) {
  const answer = await call(`${jobPath(shown)}/${verb}`, {});
  at("job-answer").textContent = `${answer.id}: ${answer.state}`;
  onChanged();
  await refresh();
}

at("job-cancel").addEventListener("click", () => change("cancel").catch(tellFailure));
at("job-retry").addEventListener("click", () => change("retry").catch(tellFailure));
at("job").addEventListener("close", () => (shown = null));
