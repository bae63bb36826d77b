// Talks to the gateway: JSON calls, and the stream of events, which goes on where it broke off.

// A token that somebody typed belongs to one tab. The key of `evalq up` dies with it, so all tabs may share it.
const TOKEN = "evalq-token", KEY = "evalq-key";

export const token = {
  get: () => sessionStorage.getItem(TOKEN) ?? localStorage.getItem(KEY) ?? "",
  set: (value) => sessionStorage.setItem(TOKEN, value),
  forget: () => (sessionStorage.removeItem(TOKEN), localStorage.removeItem(KEY)),
};

/** Takes the key out of an address such as "/#key=KEY", so that no link and no history keeps it. true: there was one. */
export function takeKey() {
  const given = /^#key=([\w-]+)$/.exec(location.hash);
  if (!given) return false;
  token.forget();
  localStorage.setItem(KEY, given[1]);
  history.replaceState(null, "", "#/");
  return true;
}

function headers() {
  return token.get() ? { Authorization: `Bearer ${token.get()}` } : {};
}

/** The gateway refused a call: its HTTP status and its sentence. */
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

/** The sentence to show for an error of call(). Browsers describe a lost connection in different words. */
export function errorText(error) {
  if (!(error instanceof Refused)) return "The gateway does not answer. The page tries again; until then it shows what it knew.";
  return error.code === 503 ? `Redis does not answer the gateway. The page tries again; until then it shows what it knew. (${error.message})` : error.message;
}

/**
 * Sends GET, or POST if there is a body, and returns the JSON of the reply. Throws Refused, or another error if nobody answers. After
 * too many requests (429) it asks again a second later.
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

/** A job's short reason. The queue cuts it after 64 bytes: what may be cut ends with an ellipsis. */
export function shortReason(reason = "") {
  return new TextEncoder().encode(reason).length > 60 && !reason.endsWith("…") ? `${reason}…` : reason;
}

/** The path of a job: the four parts of its id are segments. */
export const jobPath = (id) => "/v1/jobs/" + id.split("/").map(encodeURIComponent).join("/");

/** Reads one event from its lines. */
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
 * Follows /v1/events for ever and goes on after the last event it saw. Calls onEvent(kind, data) for each event, onState("on" | "off",
 * sentence, code) when the connection comes or goes, and onOpen() each time it is there. The gateway sends a line every 15 s, so 40 s
 * of silence end a connection.
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
      await onOpen();
      tries = 0;
      await read(reply.body, (event) => {
        if (event.id) last = event.id;
        onEvent(event.kind, event.data ? isolated(JSON.parse(event.data)) : {});
      }, alive);
      onState("off", "no connection, trying again");
    } catch (error) {
      onState("off", error instanceof Refused ? error.message : "no connection, trying again", error.code);
    }
    clearTimeout(silence);
    await pause(Math.min(1000 * 2 ** Math.min(tries, 4), 15000));
  }
}
