// What is known of the runs: their results as curves, one chart for each suite, task and metric.

let changes = 0; // Of all runs.

/** Results and ends of one run, by chart and variant. */
export class Run {
  constructor(name) {
    this.name = name;
    this.cursor = 0;
    this.points = new Map(); // "suite task metric" as JSON -> variant -> step -> point.
    this.ends = new Map(); // suite -> variant -> step -> {step, state, reason}.
    this.better = new Map(); // Chart -> higher is better.
    this.changed = new Map(); // Chart, or suite -> the last change of it.
  }

  /** One record: the result of a task, or the end of a job (its task is ""). Taken twice it changes nothing. */
  take(record) {
    if (record.task === "") {
      this.changed.set(record.suite, ++changes);
      within(within(this.ends, record.suite), record.variant).set(record.step, { step: record.step, state: record.state, reason: record.reason });
      return;
    }
    for (const [metric, value] of Object.entries(record.metrics)) {
      const key = JSON.stringify([record.suite, record.task, metric]);
      const detail = record.metrics_detail?.[metric] ?? {};
      this.changed.set(key, ++changes);
      if (detail.higher_is_better !== undefined) this.better.set(key, detail.higher_is_better);
      const number = typeof value === "number" ? value : Number(value); // "NaN" and "Infinity" are text.
      within(within(this.points, key), record.variant).set(record.step, { step: record.step, value: number, error: detail.std_error });
    }
  }

  /** Another number after each change of what one chart shows. */
  version(key) {
    const [suite] = JSON.parse(key);
    return Math.max(this.changed.get(key) ?? 0, this.changed.get(suite) ?? 0);
  }

  /** The curves of one chart. */
  curves(key, colour) {
    const [suite] = JSON.parse(key);
    const variants = this.points.get(key) ?? new Map();
    return [...variants.keys()].sort().map((variant) => {
      const steps = variants.get(variant);
      const ends = [...(this.ends.get(suite)?.get(variant)?.values() ?? [])];
      return {
        run: this.name, variant, colour, higherIsBetter: this.better.get(key),
        points: [...steps.values()].sort((a, b) => a.step - b.step),
        gaps: ends.filter((end) => end.state !== "done" && !steps.has(end.step)),
      };
    });
  }
}

function within(map, key) {
  if (!map.has(key)) map.set(key, new Map());
  return map.get(key);
}

/** Charts of the runs, those with a direction first: [{key, title}]. */
export function chartsOf(runs) {
  const keys = new Set(runs.flatMap((run) => [...run.points.keys()]));
  const directed = (key) => runs.some((run) => run.better.has(key));
  return [...keys]
    .sort((a, b) => directed(b) - directed(a) || a.localeCompare(b, "en", { numeric: true }))
    .map((key) => {
      const [suite, task, metric] = JSON.parse(key);
      return { key, title: `${metric}, ${task}${suite === task ? "" : ` (${suite})`}` };
    });
}
