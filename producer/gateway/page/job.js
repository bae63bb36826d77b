// One job in a dialog: why it failed or waits, its log, what is known of it, and the buttons to cancel and retry it.
import { samplesAddress } from "/page/address.js";
import { call, jobPath, shortReason, errorText } from "/page/gateway.js";
import { make } from "/page/elements.js";

const at = (id) => document.getElementById(id);
const OPEN = ["queued", "delayed", "running"], AGAIN = ["dead", "skipped", "cancelled"];
const FIELDS = ["run", "step", "variant", "suite", "priority", "attempts", "worker", "submitted", "started", "ended", "due", "progress", "total", "status", "fingerprint"];
const TIMES = ["submitted", "started", "ended", "due"], BANDS = ["urgent", "high", "normal", "backfill"];
let shown = null, onChanged = () => {}, onClosed = () => {};

function valueText(name, value) {
  if (TIMES.includes(name)) return new Date(Number(value)).toLocaleString();
  return name === "priority" ? BANDS[value] ?? value : String(value);
}

function fieldsOf(view) {
  const job = view.job ?? {}, message = view.message ?? {};
  const path = message.path ? `${message.root ? `${message.root}:` : ""}${message.path}` : "";
  return [["checkpoint", path], ...FIELDS.filter((name) => job[name]).map((name) => [name, valueText(name, job[name])])].filter(([, value]) => value !== "");
}

/** The state and its cause in one line: "dead: exit status 65". */
function causeOf(view) {
  const job = view.job ?? {}, first = (view.detail ?? "").split("\n")[0], reason = shortReason(job.reason) || view.why || "";
  const cause = !reason || first.slice(0, 8) === reason.slice(0, 8) ? first || reason : reason;
  return `${job.state ?? "its record was removed"}${cause ? `: ${cause}` : ""}`;
}

async function refresh() {
  const id = shown;
  const view = await call(jobPath(id));
  const log = await call(`${jobPath(id)}/log?bytes=16384`).catch(() => ({ log: "" }));
  if (shown !== id) return;
  at("job-cause").textContent = causeOf(view);
  at("job-cause").className = `cause ${view.job?.state ?? ""}`;
  at("job-fields").replaceChildren(...fieldsOf(view).flatMap(([name, value]) => [make("dt", name), make("dd", value)]));
  const pre = at("job-log"), follows = pre.scrollTop + pre.clientHeight >= pre.scrollHeight - 8;
  pre.textContent = log.log || "There is no log here. The job wrote nothing, or its log is on the worker's host.";
  if (follows) pre.scrollTop = pre.scrollHeight;
  at("job-cancel").disabled = !OPEN.includes(view.job?.state);
  at("job-retry").disabled = !AGAIN.includes(view.job?.state);
  if (view.job?.state === "done" && at("job-samples").hidden) await showSamplesLink(id);
}

/** A link to the job's samples, if it has some. */
async function showSamplesLink(id) {
  const [run, step, variant, name] = id.split("/"), suite = name.replace(/[~@].*$/, "");
  const path = `/v1/samples/${encodeURIComponent(run)}/${encodeURIComponent(step)}`;
  const found = await call(`${path}?${new URLSearchParams({ variant, suite })}`).catch(() => ({ tasks: [] }));
  if (shown !== id || !found.tasks.length) return;
  at("job-samples").hidden = false;
  at("job-samples").href = samplesAddress({ run, step, variant, ...found.tasks[0] });
}

function showFailure(error) {
  at("job-answer").textContent = errorText(error);
}

/** Opens the dialog. changed() is called after it changed the job, closed() when somebody closes it. */
export function openJob(id, changed, closed) {
  if (shown === id) return;
  [shown, onChanged, onClosed] = [id, changed, closed];
  at("job-title").textContent = id;
  for (const name of ["job-answer", "job-cause", "job-log"]) at(name).textContent = "";
  at("job-fields").replaceChildren();
  at("job-samples").hidden = true;
  if (!at("job").open) at("job").showModal();
  refresh().catch(showFailure);
}

/** Closes the dialog because another address is shown. */
export function closeJob() {
  [shown, onClosed] = [null, () => {}];
  at("job").close();
}

/** Something changed: brings the dialog up to date if it shows a job. */
export function jobChanged() {
  if (shown) refresh().catch(showFailure);
}

async function change(verb) {
  const answer = await call(`${jobPath(shown)}/${verb}`, {});
  at("job-answer").textContent = `${answer.id} is now ${answer.state}.`;
  onChanged();
  await refresh();
}

at("job-cancel").addEventListener("click", () => change("cancel").catch(showFailure));
at("job-retry").addEventListener("click", () => change("retry").catch(showFailure));
at("job").addEventListener("close", () => {
  shown = null;
  onClosed();
});
