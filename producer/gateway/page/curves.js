// The results of runs as curves: one chart for each suite, task and metric.
import { shortReason } from "/page/gateway.js";

let changes = 0; // Counts the changes of all runs.
const QUANTILE = 1.959964; // The quantile of the normal distribution for 95 %.
const EQUAL = 1e-6; // A mean and a result that differ by less than this part are the same number.

/** The results of one run and how its jobs ended, by chart and variant. */
export class Run {
  constructor(name) {
    this.name = name;
    this.cursor = 0;
    this.begin = Infinity; // When its first result was published, in unix ms.
    this.points = new Map(); // Chart key -> variant -> step -> point.
    this.ends = new Map(); // Suite -> variant -> step -> {step, epoch, at, state, reason}.
    this.better = new Map(); // Chart key -> higher is better.
    this.changed = new Map(); // Chart key or suite -> the number of its last change.
    this.samples = new Map(); // Suite and task -> variant -> step -> digest of the samples.
    this.known = new Map(); // Chart key -> variant -> {of, curve}: what the gateway said of them.
  }

  /** Takes one record: the result of a task, or the end of a job (its task is ""). Taking it twice changes nothing. */
  take(record) {
    const place = { step: record.step, epoch: record.epoch ?? undefined, at: record.finished_ms, job: record.job };
    if (record.finished_ms) this.begin = Math.min(this.begin, record.finished_ms);
    if (record.task === "") {
      this.changed.set(record.suite, ++changes);
      within(within(this.ends, record.suite), record.variant).set(record.step, { ...place, state: record.state, reason: shortReason(record.reason) });
      return;
    }
    if (record.samples_digest) {
      within(within(this.samples, JSON.stringify([record.suite, record.task])), record.variant).set(record.step, record.samples_digest);
    }
    for (const [metric, value] of Object.entries(record.metrics)) {
      const key = JSON.stringify([record.suite, record.task, metric]);
      const detail = record.metrics_detail?.[metric] ?? {};
      this.changed.set(key, ++changes);
      if (detail.higher_is_better !== undefined) this.better.set(key, detail.higher_is_better);
      const number = typeof value === "number" ? value : Number(value); // "NaN" and "Infinity" are text.
      within(within(this.points, key), record.variant).set(record.step, { ...place, value: number, error: detail.std_error ?? undefined });
    }
  }

  /** The steps that have samples of a task, in rising order. */
  sampleSteps({ suite, task, variant }) {
    return [...(this.samples.get(JSON.stringify([suite, task]))?.get(variant)?.keys() ?? [])].sort((a, b) => a - b);
  }

  /** The newest step with samples, as a place; null: there are none. */
  newestSamples() {
    const places = [...this.samples].flatMap(([key, variants]) => [...variants].map(([variant, steps]) => {
      const [suite, task] = JSON.parse(key);
      return { run: this.name, suite, task, variant, step: Math.max(...steps.keys()) };
    }));
    return places.sort((a, b) => b.step - a.step)[0] ?? null;
  }

  /** The curves of which learn() does not know their newest samples: [{key, variant, of}]. */
  unknown() {
    return [...this.points].flatMap(([key, variants]) => [...variants.keys()].flatMap((variant) => {
      const steps = this.samples.get(JSON.stringify(JSON.parse(key).slice(0, 2)))?.get(variant);
      const of = JSON.stringify([...(steps ?? [])]);
      return steps && this.known.get(key)?.get(variant)?.of !== of ? [{ key, variant, of }] : [];
    }));
  }

  /** Takes an answer of /v1/runs/RUN/significance; null: there is none for these samples. */
  learn({ key, variant, of }, curve) {
    const steps = new Map((curve?.steps ?? []).map((step) => [step.step, step]));
    within(this.known, key).set(variant, { of, steps, best: curve?.best_step });
    this.changed.set(key, ++changes);
  }

  /** A point with its 95 % interval and whether it differs significantly from the best step. */
  judged(point, key, variant) {
    const known = this.known.get(key)?.get(variant), step = known?.steps.get(point.step);
    const samples = this.samples.get(JSON.stringify(JSON.parse(key).slice(0, 2)))?.get(variant)?.has(point.step) ?? false;
    // If only some items have samples, their mean is another number, which says nothing here.
    if (step && step.mean !== null && Math.abs(step.mean - point.value) <= EQUAL * Math.max(1, Math.abs(point.value))) {
      return { ...point, samples, low: step.low, high: step.high, differs: step.differs, p: step.p_corrected, against: known.best, refused: step.error || undefined };
    }
    const reach = QUANTILE * point.error, refused = step?.error || undefined;
    const interval = point.error > 0 ? { low: point.value - reach, high: point.value + reach } : {};
    return { ...point, samples, refused, ...interval };
  }

  /** Another number after each change of what one chart shows. */
  version(key) {
    const [suite] = JSON.parse(key);
    return Math.max(this.changed.get(key) ?? 0, this.changed.get(suite) ?? 0);
  }

  /** Whether the suite has jobs that ended without a result and none with one. */
  failed(suite) {
    const ends = [...(this.ends.get(suite)?.values() ?? [])].flatMap((steps) => [...steps.values()]);
    return ends.some((end) => end.state === "dead") && ![...this.points.keys()].some((key) => JSON.parse(key)[0] === suite);
  }

  /** The curves of one chart, one for each variant. */
  curves(key, look) {
    const [suite, task] = JSON.parse(key);
    const variants = this.points.get(key) ?? new Map(), ended = this.ends.get(suite) ?? new Map();
    const names = variants.size > 0 ? [...variants.keys()] : [...ended.keys()];
    return names.sort().map((variant) => {
      const steps = variants.get(variant) ?? new Map();
      return {
        run: this.name, variant, ...look, begin: this.begin, higherIsBetter: this.better.get(key),
        name: variant === "regular" ? this.name : `${this.name} (${variant})`,
        suite, task, points: [...steps.values()].sort((a, b) => a.step - b.step).map((point) => this.judged(point, key, variant)),
        gaps: [...(ended.get(variant)?.values() ?? [])].filter((end) => end.state !== "done" && !steps.has(end.step)),
      };
    });
  }
}

function within(map, key) {
  if (!map.has(key)) map.set(key, new Map());
  return map.get(key);
}

/** The charts of the runs: [{key, title}]. Metrics with a better direction come first, suites of which every job failed last. */
export function chartsOf(runs) {
  const keys = new Set(runs.flatMap((run) => [...run.points.keys()]));
  const directed = (key) => runs.some((run) => run.better.has(key));
  const failed = new Set(runs.flatMap((run) => [...run.ends.keys()].filter((suite) => run.failed(suite))));
  const charts = [...keys]
    .sort((a, b) => directed(b) - directed(a) || a.localeCompare(b, "en", { numeric: true }))
    .map((key) => {
      const [suite, task, metric] = JSON.parse(key);
      return { key, title: `${metric}, ${task}${suite === task ? "" : ` (${suite})`}` };
    });
  for (const suite of [...failed].sort()) {
    if (![...keys].some((key) => JSON.parse(key)[0] === suite)) {
      charts.push({ key: JSON.stringify([suite, "", ""]), title: `${suite}: every job failed` });
    }
  }
  return charts;
}

/** The best point of a curve; null if nobody said which direction is better. */
export function bestOf(curve) {
  if (curve.higherIsBetter === undefined) return null;
  const sign = curve.higherIsBetter ? 1 : -1;
  return curve.points.reduce((best, point) =>
    Number.isFinite(point.value) && (!best || sign * point.value > sign * best.value) ? point : best, null);
}

/** The values without their noise: an exponential moving average whose start is not drawn to zero. */
export function smoothed(values, weight) {
  let sum = 0, part = 0;
  return values.map((value) => {
    sum = sum * weight + value * (1 - weight);
    part = part * weight + (1 - weight);
    return sum / part;
  });
}
