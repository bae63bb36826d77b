// Two checkpoints on the same items: the table of paired differences, and the items that changed.
import { compareAddress, samplesAddress } from "/page/address.js";
import { call, told } from "/page/gateway.js";
import { ItemList, sideBySide, textBlock } from "/page/items.js";
import { make, renew } from "/page/panels.js";
import { short } from "/page/scale.js";

const SIGNIFICANT = 0.05;
const at = (id) => document.getElementById(id);
let place = null, list = null, loads = 0;

const signed = (value) => `${value > 0 ? "+" : ""}${short(value)}`;
const pText = (p) => (p < 1e-4 ? p.toExponential(1) : String(Number(p.toPrecision(3))));

/** What a row says of B. */
function verdict(row) {
  if (row.p_corrected >= SIGNIFICANT) return { text: "no significant difference", className: "" };
  const better = (row.difference > 0) === row.higher_is_better;
  return { text: better ? "B is better" : "B is worse", className: better ? "good" : "bad" };
}

function draw(item, page) {
  const article = make("article", "", "item"), head = article.appendChild(make("header"));
  const words = item.better === null ? ["same", "score"] : item.better ? ["better", "score good"] : ["worse", "score bad"];
  head.append(make("h3", item.id), make("span", `${page.metric} ${short(item.a)} → ${short(item.b)}, ${words[0]}`, words[1]));
  if (item.target !== null) article.append(textBlock("Target", item.target));
  article.append(sideBySide(item));
  return article;
}

const chips = {
  first: "changed",
  of: (page) => [
    { name: "changed", label: "flipped", note: (page.better + page.worse).toLocaleString("en") },
    { name: "better", note: page.better.toLocaleString("en") },
    { name: "worse", note: page.worse.toLocaleString("en") },
    { name: "all", note: page.common.toLocaleString("en") },
  ],
};

function changeQuery(changes) {
  location.replace(compareAddress(place.sides, place, { ...Object.fromEntries(place.query), ...changes }));
}

function tableRow(row) {
  const line = document.createElement("tr"), said = verdict(row), link = make("a", row.metric);
  const task = row.suite === row.task ? row.task : `${row.task} (${row.suite})`;
  link.href = compareAddress(place.sides, { ...row, variant: place.variant }, { metric: row.metric });
  link.dataset.key = `${row.suite}/${row.task}/${row.metric}`;
  link.title = "Show the items whose score changed";
  const name = make("td", `${task}: `);
  name.append(link);
  line.append(name, make("td", said.text, said.className), ...[short(row.baseline), short(row.candidate)].map((text) => make("td", text)),
    make("td", signed(row.difference), said.className), make("td", `${signed(row.low)} to ${signed(row.high)}`),
    make("td", pText(row.p_corrected)), make("td", `${row.wins}/${row.losses}/${row.ties}`),
    make("td", `${row.method}, standard error ${row.standard_error === null ? "not known" : short(row.standard_error)}`, "method"));
  if (row.suite === place.suite && row.task === place.task && row.metric === place.metric) line.setAttribute("aria-current", "true");
  return line;
}

/** Sentences below the table. */
function notes(rows) {
  const said = [];
  if (rows.length > 1) said.push(`p is corrected by Holm's method for ${rows.length} comparisons.`);
  said.push("The difference is B − A over the items that both have. Intervals are 95 %.");
  const seen = new Set();
  for (const row of rows) {
    const key = `${row.suite}/${row.task}`;
    if (!seen.has(key) && row.only_baseline + row.only_candidate > 0) {
      said.push(`${row.task}: ${row.only_baseline} items are only in A and ${row.only_candidate} only in B.`);
    }
    seen.add(key);
  }
  return said.join(" ");
}

function showHead() {
  const [a, b] = place.sides ?? [place.named[0] ?? "", place.named[1] ?? ""];
  at("sides-a").value = a;
  at("sides-b").value = b;
  for (const [id, side] of [["sides-link-a", a], ["sides-link-b", b]]) {
    const [run, step] = side.split("@");
    at(id).textContent = side;
    at(id).href = samplesAddress({ ...place, run, step: step ?? "" });
  }
  at("sides-head-a").textContent = `A: ${a}`;
  at("sides-head-b").textContent = `B: ${b}`;
}

function say(text, isError = false) {
  at("sides-said").textContent = text;
  at("sides-said").classList.toggle("bad", isError);
}

/** Shows a place as readAddress() gives it. Without a task it is that of the first row. */
export async function showCheckpoints(next) {
  const load = ++loads, sides = String(next.sides ?? next.named);
  const isOther = place === null || String(place.sides ?? place.named) !== sides || (place.variant !== (next.variant || "regular"));
  const rows = isOther ? null : place.rows;
  place = { ...next, variant: next.variant || "regular", metric: next.query.get("metric") ?? "", rows };
  showHead();
  at("sides-items").hidden = true;
  at("sides-table").hidden = rows === null;
  if (place.sides === null) {
    say("A comparison needs two checkpoints, RUN@STEP, such as run1@500 and run1@1000.", true);
    return;
  }
  const fixed = { a: place.sides[0], b: place.sides[1], variant: place.variant };
  try {
    if (rows === null) {
      say("Comparing …");
      place.rows = (await call(`/v1/compare?${new URLSearchParams(fixed)}`)).metrics;
      if (load !== loads) return;
    }
    const first = place.rows[0];
    if (!place.task) Object.assign(place, { suite: first.suite, task: first.task });
    const own = place.rows.filter((row) => row.suite === place.suite && row.task === place.task);
    place.metric = place.metric || (own[0]?.metric ?? "");
    renew(at("sides-table").tBodies[0], place.rows.map(tableRow));
    at("sides-table").hidden = false;
    say(notes(place.rows));
    at("sides-items").hidden = false;
    at("sides-items-title").textContent = `Items of ${place.task} by ${place.metric}`;
    await list.show("/v1/diff", { ...fixed, suite: place.suite, task: place.task, metric: place.metric }, next.query);
  } catch (error) {
    if (load === loads) say(told(error), true);
  }
}

export function startCheckpoints() {
  list = new ItemList(at("sides-items"), { items: "items", chips, draw, changeQuery });
  const go = (a, b) => (location.hash = compareAddress([a.trim(), b.trim()], { variant: place.variant }));
  at("sides-form").addEventListener("submit", (event) => {
    event.preventDefault();
    go(at("sides-a").value, at("sides-b").value);
  });
  at("sides-swap").addEventListener("click", () => go(at("sides-b").value, at("sides-a").value));
}
