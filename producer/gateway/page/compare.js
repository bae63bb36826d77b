// Two checkpoints on the same items: the table of paired differences, and the items that changed.
import { compareAddress, samplesAddress } from "/page/address.js";
import { call, errorText } from "/page/gateway.js";
import { ItemList, sideBySide, textBlock } from "/page/items.js";
import { make, renew } from "/page/elements.js";
import { short } from "/page/scale.js";

const SIGNIFICANT = 0.05;
const at = (id) => document.getElementById(id);
let place = null, list = null, loads = 0;

const signed = (value) => `${value > 0 ? "+" : ""}${short(value)}`;
const pText = (p) => (p < 1e-4 ? p.toExponential(1) : String(Number(p.toPrecision(3))));

/** Returns whether B is better or worse in this row, and the CSS class for the text. */
function verdict(row) {
  if (row.p_corrected >= SIGNIFICANT) return { text: "no significant difference", className: "" };
  const better = (row.difference > 0) === row.higher_is_better;
  return { text: better ? "B is better" : "B is worse", className: better ? "good" : "bad" };
}

function draw(item, page) {
  const article = make("article", "", "item"), head = article.appendChild(make("header"));
  const word = item.better === null ? "same" : item.better ? "better" : "worse";
  const colour = { same: "", better: " good", worse: " bad" }[word];
  const change = `${page.metric} ${short(item.a)} → ${short(item.b)}, ${word}`;
  head.append(make("h3", item.id), make("span", change, `score${colour}`));
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
  const query = { ...Object.fromEntries(place.query), ...changes };
  location.replace(compareAddress(place.sides, place, query));
}

function tableRow(row) {
  const line = document.createElement("tr"), said = verdict(row), link = make("a", row.metric);
  const task = row.suite === row.task ? row.task : `${row.task} (${row.suite})`;
  const { variant } = place, { metric } = row;
  link.href = compareAddress(place.sides, { ...row, variant }, { metric });
  link.dataset.key = `${row.suite}/${row.task}/${row.metric}`;
  link.title = "Show the items whose score changed";
  const name = make("td", `${task}: `);
  name.append(link);
  const error = row.standard_error === null ? "not known" : short(row.standard_error);
  const cell = (text, className) => line.append(make("td", text, className));
  line.append(name);
  cell(said.text, said.className);
  cell(short(row.baseline));
  cell(short(row.candidate));
  cell(signed(row.difference), said.className);
  cell(`${signed(row.low)} to ${signed(row.high)}`);
  cell(pText(row.p_corrected));
  cell(`${row.wins}/${row.losses}/${row.ties}`);
  cell(`${row.method}, standard error ${error}`, "method");
  const isShown = row.suite === place.suite && row.task === place.task && metric === place.metric;
  if (isShown) line.setAttribute("aria-current", "true");
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
      const [a, b] = [row.only_baseline, row.only_candidate];
      said.push(`${row.task}: ${a} items are only in A and ${b} only in B.`);
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

/** Shows the comparison that readAddress() returned. The task is that of the first row if the address names none. */
export async function showCheckpoints(next) {
  const load = ++loads, sides = String(next.sides ?? next.named);
  const variant = next.variant || "regular", metric = next.query.get("metric") ?? "";
  const isSame = String(place?.sides ?? place?.named) === sides && place?.variant === variant;
  const rows = isSame ? place.rows : null; // Other items of the same comparison.
  place = { ...next, variant, metric, rows };
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
    const { suite, task } = place;
    await list.show("/v1/diff", { ...fixed, suite, task, metric: place.metric }, next.query);
  } catch (error) {
    if (load === loads) say(errorText(error), true);
  }
}

export function startCheckpoints() {
  list = new ItemList(at("sides-items"), { items: "items", chips, draw, changeQuery });
  const go = (a, b) => {
    location.hash = compareAddress([a.trim(), b.trim()], { variant: place.variant });
  };
  at("sides-form").addEventListener("submit", (event) => {
    event.preventDefault();
    go(at("sides-a").value, at("sides-b").value);
  });
  at("sides-swap").addEventListener("click", () => go(at("sides-b").value, at("sides-a").value));
}
