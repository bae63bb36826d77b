// The panels of the page: numbers of the queue, workers and sinks.
import { bytes, make } from "/page/elements.js";
import { duration } from "/page/scale.js";

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
