// Talks to the gateway: JSON calls, and the stream of events, which goes on where it broke off.

const TOKEN = "evalq-token";

export const token = {
  get: () => sessionStorage.getItem(TOKEN) ?? "",
  set: (value) => (value ? sessionStorage.setItem(TOKEN, value) : sessionStorage.removeItem(TOKEN)),
};

function headers() {
  return token.get() ? { Authorization: `Bearer ${token.get()}` } : {};
}

/** What the gateway said no to: its status and sentence. */
export class Refused extends Error {
  constructor(code, sentence) {
    super(sentence);
    this.code = code;
  }
}

const TURNS = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g; // Characters that change the direction of text.
const RIGHT_TO_LEFT = /[\p{Script=Hebrew}\p{Script=Arabic}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}\p{Script=Adlam}]/u;

/**
 * A reply in which no text can reorder the text around it. Characters that change the direction become visible escapes; a text
 * written from right to left gets an isolate of its own. Ids and names of runs have neither, so calls may use them.
 */
export function isolated(value) {
  if (typeof value === "string") {
    const text = value.replace(TURNS, (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`);
    return RIGHT_TO_LEFT.test(text) ? `\u2068${text}\u2069` : text;
  }
  if (Array.isArray(value)) return value.map(isolated);
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([name, one]) => [isolated(name), isolated(one)]));
}

const pause = (ms) => new Promise((resume) => setTimeout(resume, ms));

async function refusal(reply) {
  const body = isolated(await reply.json().catch(() => ({})));
  return new Refused(reply.status, body.detail || `${reply.status} ${reply.statusText}`);
}

/** What to tell of an error of call(): the words of browsers for "nobody answers" differ. */
export function told(error) {
  if (!(error instanceof Refused)) return "The gateway does not answer: what is shown may be old.";
  return error.code === 503 ? `What is shown may be old, for Redis does not answer the gateway: ${error.message}` : error.message;
}

/**
 * GET, or POST when there is a body; the JSON of the reply. Throws Refused, or something else when nobody answers. Who asked too much
 * (429) asks again a second later.
 */
export async function call(path, body) {
  const options = { headers: headers(), cache: "no-store", signal: AbortSignal.timeout(60000) };
  if (body !== undefined) {
    options.method = "POST";
    options.body = JSON.stringify(body);
    options.headers["Content-Type"] = "application/json";
  }
  const reply = await fetch(path, options);
  if (reply.status === 429) {
    await pause(1000);
    return call(path, body);
  }
  if (!reply.ok) throw await refusal(reply);
  return isolated(await reply.json());
}

/** Path of a job's resource: the four parts of its id are segments. */
export const jobPath = (id) => "/v1/jobs/" + id.split("/").map(encodeURIComponent).join("/");

/** One event out of its lines. */
function eventOf(lines) {
  const event = { kind: "message", id: null, data: "" };
  for (const line of lines) {
    const at = line.indexOf(":");
    const name = at < 0 ? line : line.slice(0, at);
    const value = at < 0 ? "" : line.slice(at + 1).replace(/^ /, "");
    if (name === "event") event.kind = value;
    else if (name === "id") event.id = value;
    else if (name === "data") event.data += (event.data ? "\n" : "") + value;
  }
  return event;
}

async function read(body, onEvent, alive) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    alive();
    rest += value;
    const blocks = rest.split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const lines = block.split("\n").filter((line) => line && !line.startsWith(":"));
      if (lines.length) onEvent(eventOf(lines));
    }
  }
}

/**
 * Follows /v1/events for ever. onEvent(kind, data) for each event, onState("on" | "off", sentence) when the stream comes
 * and goes; onOpen() each time it is there, with true the first time. A line comes every 15 s: 40 s of silence end a connection.
 */
export async function follow({ onEvent, onState, onOpen }) {
  let last = null;
  for (let tries = 0; ; tries++) {
    const stop = new AbortController();
    let silence;
    const alive = () => {
      clearTimeout(silence);
      silence = setTimeout(() => stop.abort(), 40000);
    };
    try {
      alive();
      const extra = last ? { "Last-Event-ID": last } : {};
      const reply = await fetch("/v1/events", { headers: { ...headers(), ...extra }, signal: stop.signal, cache: "no-store" });
      if (!reply.ok) throw await refusal(reply);
      onState("on", "live");
      await onOpen(last === null);
      tries = 0;
      await read(reply.body, (event) => {
        if (event.id) last = event.id;
        onEvent(event.kind, event.data ? isolated(JSON.parse(event.data)) : {});
      }, alive);
      onState("off", "connection ended");
    } catch (error) {
      onState("off", error instanceof Refused ? error.message : "the gateway does not answer", error.code);
    }
    clearTimeout(silence);
    await pause(Math.min(1000 * 2 ** Math.min(tries, 4), 15000));
  }
}
