// Asks the gateway which steps of the shown curves differ significantly from the best, a curve at a
// time, and again only after the samples of the curve changed.
import { call, Refused } from "/page/gateway.js";

let wanted = null, works = false;

async function ask(run, key, variant) {
  const [suite, task, metric] = JSON.parse(key);
  const asked = new URLSearchParams({ suite, task, metric, variant });
  for (;;) {
    const curve = await call(`/v1/runs/${encodeURIComponent(run.name)}/significance?${asked}`);
    if (curve.complete) return curve;
  }
}

async function work(onChange) {
  while (wanted !== null) {
    const [next] = wanted().flatMap((run) => run.unknown().map((one) => ({ run, ...one })));
    if (!next) break;
    try {
      next.run.learn(next, await ask(next.run, next.key, next.variant));
      onChange();
    } catch (error) {
      if (!(error instanceof Refused) || error.code >= 500) break; // It is asked again later.
      next.run.learn(next, null); // Such as a metric that the samples do not have.
    }
  }
}

/** Learns what is not known yet of the runs that runs() gives. Calls onChange() for each curve. */
export async function learnSignificance(runs, onChange) {
  wanted = runs;
  if (works) return;
  works = true;
  await work(onChange).finally(() => (works = false));
}
