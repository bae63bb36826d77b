// Parts of the page: numbers, workers, sinks, and the helpers that build elements.
import { duration } from "/page/scale.js";

export const STATES = ["running", "queued", "delayed", "dead", "skipped", "cancelled", "done"];

/** An element with text. Text from outside always goes through textContent. */
export function make(name, text = "", className = "") {
  const made = document.createElement(name);
  made.textContent = text;
  made.className = className;
  return made;
}

/** Replaces the children. The focus stays on the element with the same data-key. */
export function renew(parent, children) {
  const key = parent.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  parent.replaceChildren(...children);
  if (key !== undefined) parent.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus({ preventScroll: true });
}

export function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = count > 0 ? Math.min(Math.floor(Math.log2(count) / 10), 4) : 0;
  return `${(count / 1024 ** power).toFixed(power > 2 ? 1 : 0)} ${units[power]}`;
}

export function showNumbers(list, waiting, stats) {
  const alive = stats.workers.filter((worker) => worker.state === "alive");
  const slots = alive.flatMap((worker) => worker.info.slots ?? []);
  const busy = slots.filter((slot) => slot.state === "running").length;
  const rows = [
    ["Waiting", stats.states.queued + stats.states.delayed, ""],
    ["Running", stats.states.running, ""],
    ["Done", stats.states.done, ""],
    ["Dead", stats.states.dead, stats.states.dead > 0 ? "bad" : ""],
    ["Longest wait", stats.oldest_waiting_ms < 0 ? "–" : duration(stats.oldest_waiting_ms), ""],
    ["Workers", alive.length, alive.length === 0 ? "bad" : ""],
    ["Busy slots", `${busy}/${slots.length}`, ""],
  ];
  list.replaceChildren(...rows.map(([name, value, className]) => {
    const row = make("div", "", className);
    row.append(make("dt", name), make("dd", typeof value === "number" ? value.toLocaleString("en") : value));
    return row;
  }));
  const reasons = Object.entries(stats.waiting).map(([reason, count]) => make("li", `${count} ${count === 1 ? "waits" : "wait"}: ${reason}`, "warn"));
  const paused = [...(stats.paused.queue ? ["the queue"] : []), ...stats.paused.runs.map((run) => `run ${run}`)];
  const losses = stats.losses.map((loss) => make("li", `The sink ${loss.sink} lost results. evalq results --replay ${loss.sink} delivers them again.`, "bad"));
  waiting.replaceChildren(...losses, ...(paused.length ? [make("li", `Paused: ${paused.join(", ")}`, "warn")] : []), ...reasons);
}

function bar(share) {
  const outer = make("div", "", "bar"), inner = outer.appendChild(document.createElement("i"));
  inner.style.width = `${Math.round(Math.min(Math.max(share, 0), 1) * 100)}%`;
  return outer;
}

function gpuLine(card, reading) {
  const parts = [reading.gpu];
  if (reading.busy_percent !== undefined) parts.push(`${reading.busy_percent}% busy`);
  if (reading.memory_bytes) parts.push(`${bytes(reading.memory_used_bytes)} of ${bytes(reading.memory_bytes)}`);
  if (reading.temperature_c !== undefined) parts.push(`${reading.temperature_c} °C`);
  card.append(make("p", parts.join(" · ")));
  if (reading.memory_bytes) card.append(bar(reading.memory_used_bytes / reading.memory_bytes));
}

function workerCard(worker) {
  const info = worker.info, card = make("div", "", "card");
  const words = { alive: "good", stale: "warn", dead: "bad" };
  card.append(make("h3", worker.id));
  const state = make("p", `${worker.state}${info.sick ? ", claims nothing: several jobs crashed on it" : ""}${info.draining ? ", finishing its jobs" : ""}`, info.sick ? "bad" : words[worker.state] ?? "");
  card.append(state, make("p", `${info.host ?? ""} · ${info.backend ?? ""} · heartbeat ${duration(worker.heartbeat_age_ms)} ago · ${(info.suites ?? []).join(", ")}`));
  for (const slot of info.slots ?? []) {
    const what = slot.job || slot.state;
    card.append(make("p", `Slot ${slot.number}${slot.devices ? ` (${slot.devices})` : ""}: ${what}${slot.note ? `, ${slot.note}` : ""}`));
    for (const reading of slot.readings ?? []) gpuLine(card, reading);
  }
  return card;
}

export function showWorkers(list, empty, workers) {
  list.replaceChildren(...workers.map(workerCard));
  empty.hidden = workers.length > 0;
}

export function showSinks(body, empty, sinks) {
  body.replaceChildren(...sinks.map((sink) => {
    const row = document.createElement("tr");
    row.append(make("td", sink.name), make("td", String(sink.lag), sink.lag > 100 ? "warn" : ""), make("td", String(sink.pending)),
      make("td", `${duration(sink.seen_age_ms)} ago`, "brief"), make("td", sink.error || "–", sink.error ? "bad" : ""));
    return row;
  }));
  empty.hidden = sinks.length > 0;
}

/** Buttons that are pressed or not: [{name, label, note, colour}]. Calls onToggle(name). */
export function showChips(group, chips, pressed, onToggle) {
  renew(group, chips.map((chip) => {
    const button = make("button");
    button.type = "button";
    button.dataset.key = chip.name;
    button.title = chip.label ?? chip.name;
    button.setAttribute("aria-pressed", String(pressed(chip.name)));
    if (chip.colour) {
      button.style.setProperty("--chip", chip.colour);
      button.append(document.createElement("i"));
    }
    button.append(chip.label ?? chip.name);
    if (chip.note !== undefined) button.append(make("small", chip.note));
    button.addEventListener("click", () => onToggle(chip.name));
    return button;
  }));
}
