// The samples of one checkpoint: what each item of a task got.
import { compareAddress, samplesAddress } from "/page/address.js";
import { call, errorText } from "/page/gateway.js";
import { ItemList, textBlock } from "/page/items.js";
import { make } from "/page/elements.js";
import { short } from "/page/scale.js";

const at = (id) => document.getElementById(id);
let place = null, list = null, loads = 0, stepsOf = () => [];

const taskName = ({ suite, task }) => (suite === task ? task : `${task} (${suite})`);

function showTitle() {
  const variant = place.variant === "regular" ? "" : `, ${place.variant}`;
  const task = place.task ? `: ${taskName(place)}` : "";
  at("samples-title").textContent = `Samples of ${place.run}, step ${place.step}${variant}${task}`;
}

/** Fills a menu with [{value, text}] and hides it if there is no choice. */
function fillMenu(menu, entries, value) {
  menu.replaceChildren(...entries.map((entry) => {
    const option = make("option", entry.text);
    option.value = entry.value;
    option.selected = entry.value === value;
    return option;
  }));
  menu.parentElement.hidden = entries.length < 2;
}

/** The menu of tasks. The value of an entry is its place in the list. */
function fillTasks(menu, tasks, chosen) {
  const index = tasks.findIndex((one) => one.suite === chosen.suite && one.task === chosen.task);
  fillMenu(menu, tasks.map((one, i) => ({ value: String(i), text: taskName(one) })), String(index));
}

function badge(name, value) {
  const colour = value === 1 ? " good" : value === 0 ? " bad" : "";
  return make("span", `${name} ${short(value)}`, `score${colour}`);
}

function draw(item) {
  const article = make("article", "", "item"), head = article.appendChild(make("header"));
  const say = (text) => head.append(make("span", text, "score"));
  head.append(make("h3", item.id), ...Object.entries(item.scores).map((score) => badge(...score)));
  if (item.logprob !== null) say(`log-probability ${short(item.logprob)}`);
  if (item.tokens !== null) say(`${item.tokens} tokens`);
  if (item.cluster !== null) say(`group ${item.cluster}`);
  if (item.target !== null) article.append(textBlock("Target", item.target));
  article.append(textBlock("Output", item.output));
  return article;
}

const chips = {
  first: "all",
  of: (page) => [
    { name: "all", note: page.items.toLocaleString("en") },
    ...(page.right === null ? [] : [
      { name: "right", note: page.right.toLocaleString("en") },
      { name: "wrong", note: page.wrong.toLocaleString("en") }]),
  ],
};

/** Writes changes of the filters into the address, which shows them. */
function changeQuery(changes) {
  location.replace(samplesAddress(place, { ...Object.fromEntries(place.query), ...changes }));
}

/** The other checkpoints of the run with samples of this task, and links to what flipped. */
function showOthers() {
  const steps = stepsOf(place.run, place).filter((step) => step !== Number(place.step));
  const menu = at("samples-other"), here = `${place.run}@${place.step}`;
  const earlier = steps.filter((step) => step < Number(place.step)).at(-1);
  const entries = steps.map((step) => ({ value: String(step), text: `step ${step}` }));
  fillMenu(menu, [{ value: "", text: "choose a step" }, ...entries], "");
  const link = at("samples-flipped");
  link.hidden = earlier === undefined;
  link.textContent = `Flipped since step ${earlier}`;
  link.href = compareAddress([`${place.run}@${earlier}`, here], place);
}

/** Shows the samples that readAddress() named. The task is the first one if the address names none. */
export async function showSamples(next) {
  const load = ++loads, variant = next.variant || "regular";
  place = { ...next, variant };
  showTitle();
  at("samples-run").href = `#/run/${encodeURIComponent(next.run)}`;
  at("samples-run").textContent = `Run ${next.run}`;
  list.clear();
  list.say("Loading the samples …");
  const path = `/v1/samples/${encodeURIComponent(next.run)}/${encodeURIComponent(next.step)}`;
  try {
    const { tasks } = await call(`${path}?variant=${encodeURIComponent(variant)}`);
    if (load !== loads) return;
    at("samples").classList.remove("failed");
    if (!next.task) Object.assign(place, { suite: tasks[0].suite, task: tasks[0].task });
    showTitle();
    fillTasks(at("samples-task"), tasks, place);
    at("samples-task").onchange = (event) => {
      location.hash = samplesAddress({ ...place, ...tasks[Number(event.target.value)] });
    };
    showOthers();
    const fixed = { variant, suite: place.suite, task: place.task };
    const page = await list.show(`${path}/items`, fixed, next.query);
    if (page === null || load !== loads) return;
    const scores = Object.keys(page.samples[0]?.scores ?? {});
    if (scores.length) {
      const entries = scores.map((name) => ({ value: name, text: name }));
      fillMenu(at("samples-metric"), entries, page.metric);
    }
  } catch (error) {
    if (load !== loads) return;
    list.say(errorText(error), true);
    at("samples").classList.add("failed"); // There is nothing to choose from.
  }
}

/** Other results of the run became known. */
export function samplesChanged() {
  if (place !== null && document.activeElement !== at("samples-other")) showOthers();
}

/** stepsOf(run, {variant, suite, task}): the known steps that have samples, in rising order. */
export function startSamples(steps) {
  stepsOf = steps;
  list = new ItemList(at("samples-items"), { items: "samples", chips, draw, changeQuery });
  at("samples-metric").addEventListener("change", (event) => {
    changeQuery({ metric: event.target.value, show: "", offset: "" });
  });
  at("samples-other").addEventListener("change", (event) => {
    const step = Number(event.target.value), here = Number(place.step);
    if (event.target.value === "") return;
    const sides = [step, here].sort((a, b) => a - b).map((one) => `${place.run}@${one}`);
    location.hash = compareAddress(sides, place);
  });
}
