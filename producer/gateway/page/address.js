// The addresses of the page: "#/VIEW/WORDS...?QUERY".

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

const isCheckpoint = (name) => /^[^@]+@\d+$/.test(name);
const placed = ([variant = "", suite = "", task = ""]) => ({ variant, suite, task });

/**
 * The view that an address names. {name: "overview"}, {name: "run" | "compare", runs}, {name: "job", job},
 * {name: "samples", run, step, variant, suite, task, query}, or
 * {name: "checkpoints", sides, variant, suite, task, query}.
 */
export function readAddress(hash) {
  const [path, query = ""] = hash.split("?");
  const [, name = "", ...rest] = path.split("/");
  const words = rest.map(decoded), asked = new URLSearchParams(query);
  if (name === "run" && words[0]) return { name, runs: [words[0]] };
  if (name === "compare") {
    const names = (words[0] ?? "").split(",").filter(Boolean);
    if (!names.some((one) => one.includes("@"))) return { name, runs: names };
    const sides = names.length === 2 && names.every(isCheckpoint) ? names : null;
    return { name: "checkpoints", sides, named: names, ...placed(words.slice(1)), query: asked };
  }
  if (name === "samples" && words[1]) {
    return { name, run: words[0], step: words[1], ...placed(words.slice(2)), query: asked };
  }
  if (name === "job" && words.length === 4) return { name, job: words.join("/") };
  return { name: "overview", runs: null };
}

const joined = (words, query) => {
  const asked = new URLSearchParams(Object.entries(query).filter(([, value]) => value)).toString();
  const path = words.filter((word) => word !== "").map(encodeURIComponent).join("/");
  return `#/${path}${asked ? `?${asked}` : ""}`;
};

export const samplesAddress = ({ run, step, variant, suite, task }, query = {}) =>
  joined(["samples", run, String(step), variant, suite, task], query);

/** sides: ["RUN@STEP", "RUN@STEP"]. */
export const compareAddress = (sides, { variant = "", suite = "", task = "" } = {}, query = {}) =>
  joined(["compare", sides.join(","), variant, suite, task], query)
    .replace(/%40/g, "@").replace(/%2C/g, ",");
