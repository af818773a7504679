// A page for client.js, all of it fake: time, animation frames, visibility, sockets, EventSources, fetch, console.
// A test makes a `Page`, plays the server through `page.socket`, and moves time on with `page.tick`.

import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

const later = globalThis.setImmediate;

// How often things were done, for tests that count work and not time; client.js may have kept a reference, so that
// counters stand here before it is loaded.
export const counts = { freeze: 0, join: 0, get: 0, steps: 0 };

function count(owner, name, counter) {
  const original = owner[name];
  owner[name] = function (...values) {
    counts[counter]++;
    return original.apply(this, values);
  };
}

count(Object, "freeze", "freeze");
count(Array.prototype, "join", "join");
count(Map.prototype, "get", "get");
for (const each of [[], new Map(), new Set()]) count(Object.getPrototypeOf(each[Symbol.iterator]()), "next", "steps");
for (const name of ["map", "filter", "find", "some", "forEach"]) {
  const original = Array.prototype[name];
  Array.prototype[name] = function (...values) {
    counts.steps += this.length;
    return original.apply(this, values);
  };
}

// What `work` counts while it runs.
export function counting(work) {
  const before = { ...counts };
  work();
  return Object.fromEntries(Object.entries(before).map(([name, value]) => [name, counts[name] - value]));
}

// CLIENT names another file: a mutant. As a data URL it is a module for every Node 20, without a package.json.
const client = process.env.CLIENT ?? fileURLToPath(new URL("../../streaming/static/client.js", import.meta.url));
export const { connect } = await load(client);

export async function load(path, replace = (source) => source) {
  const source = replace(readFileSync(path, "utf8"));
  return import(`data:text/javascript,${encodeURIComponent(`${source}\n//# sourceURL=file://${path}`)}`);
}

// Lets promises settle.
export const settled = () => new Promise((resolve) => later(resolve));

class Clock {
  now = 1_700_000_000_000;
  slow = 0; // what each look at performance.now costs
  timers = new Map();
  frames = new Map();
  asked = { frames: 0, timers: [] };
  count = 0;

  after = (work, ms = 0, every = 0) => {
    this.asked.timers.push(ms);
    this.timers.set(++this.count, { work, at: this.now + ms, every });
    return this.count;
  };

  tick(ms) {
    const end = this.now + ms;
    for (;;) {
      let next;
      for (const [id, timer] of this.timers) {
        if (timer.at <= end && (!next || timer.at < next.timer.at)) next = { id, timer };
      }
      if (!next) break;
      const { id, timer } = next;
      this.now = Math.max(this.now, timer.at);
      if (timer.every) timer.at = this.now + timer.every;
      else this.timers.delete(id);
      timer.work();
    }
    this.now = Math.max(this.now, end);
  }

  // Runs the one task that is due, as one turn of an event loop.
  turn() {
    for (const [id, { work, at, every }] of this.timers) {
      if (at > this.now || every) continue;
      this.timers.delete(id);
      return work();
    }
  }

  // The machine sleeps: time passes and nothing runs.
  sleep(ms) {
    this.now += ms;
  }

  frame() {
    const frames = [...this.frames.values()];
    this.frames.clear();
    for (const work of frames) work(this.now);
    return frames.length;
  }
}

// A socket, from both sides. `die` is what a network does: nothing comes any more and readyState goes on saying OPEN.
export class FakeSocket extends EventTarget {
  readyState = 0;
  raw = [];
  onopen = null;
  onmessage = null;
  onclose = null;
  onerror = null;
  isClosedByPage = false;
  isDead = false;

  constructor(url) {
    super();
    this.url = url;
    Page.current.sockets.push(this);
  }

  send(data) {
    if (this.readyState === 0) throw new Error("InvalidStateError: still connecting");
    this.raw.push(data);
  }

  close() {
    if (this.readyState > 1) return;
    this.readyState = 2;
    this.isClosedByPage = true;
    setTimeout(() => this.#tell("close", { code: 1005 }));
  }

  // All frames that the page has sent, and their messages.
  get messages() {
    return this.raw.map((text) => [].concat(JSON.parse(text)));
  }

  get sent() {
    return this.messages.flat();
  }

  named(t) {
    return this.sent.filter((frame) => frame.t === t);
  }

  // The server's side.
  open(hello = {}) {
    this.readyState = 1;
    this.#tell("open", {});
    if (hello) this.say({ ...HELLO, ...hello });
    return this;
  }

  say(...frames) {
    this.text(JSON.stringify(frames));
  }

  text(data) {
    if (!this.isDead) this.#tell("message", { data });
  }

  drop(code = 1006) {
    this.readyState = 3;
    this.#tell("error", {});
    this.#tell("close", { code });
  }

  die() {
    this.isDead = true;
  }

  #tell(type, members) {
    this[`on${type}`]?.({ type, ...members });
    this.dispatchEvent(Object.assign(new Event(type), members));
  }
}

export const HELLO = {
  t: "hello",
  proto: 1,
  caps: ["activity", "focus", "visibility", "publish", "cancel"],
  flush_ms: 50,
  background_ms: 333,
  ping_s: 15,
  max_in: 65536,
};

export class FakeSource extends EventTarget {
  readyState = 0;
  onopen = null;
  onerror = null;

  constructor(url) {
    super();
    this.url = url;
    Page.current.sources.push(this);
  }

  close() {
    this.readyState = 2;
  }

  get isClosed() {
    return this.readyState === 2;
  }

  open() {
    this.readyState = 1;
    this.onopen?.({});
    return this;
  }

  // As a network error, or as an answer that is not 200, for which a browser does not come back by itself.
  fail(isFinal = false) {
    if (this.isClosed) return;
    this.readyState = isFinal ? 2 : 0;
    this.onerror?.({});
  }

  say(...frames) {
    for (const frame of frames) {
      if (!this.isClosed) this.dispatchEvent(Object.assign(new Event(frame.t), { data: JSON.stringify(frame) }));
    }
  }
}

const GLOBALS = ["setTimeout", "clearTimeout", "setInterval", "clearInterval", "requestAnimationFrame",
  "cancelAnimationFrame", "document", "addEventListener", "removeEventListener", "WebSocket", "EventSource", "fetch",
  "location"]; // prettier-ignore

// Installs itself on globalThis until the test `t` ends. A word on console.error that the test did not `expect` fails it.
export class Page {
  static current = null;

  sockets = [];
  sources = [];
  requests = [];
  errors = [];
  random = 0.5;
  answer = { ok: true, status: 202 };
  clock = new Clock();

  constructor(t, { hasFrames = true, hidden = false, hasDocument = true } = {}) {
    Page.current = this;
    const { clock } = this;
    const window = new EventTarget();
    this.window = window;
    this.document = Object.assign(new EventTarget(), { hidden });
    const kept = GLOBALS.map((name) => [name, Object.getOwnPropertyDescriptor(globalThis, name)]);
    const { now } = Date;
    const { random } = Math;
    const { error } = console;
    const set = (name, value) =>
      Object.defineProperty(globalThis, name, { value, configurable: true, writable: true, enumerable: true });
    set("setTimeout", (work, ms) => clock.after(work, ms));
    set("setInterval", (work, ms) => clock.after(work, ms, ms));
    for (const name of ["clearTimeout", "clearInterval"]) set(name, (id) => void clock.timers.delete(id));
    if (hasFrames) {
      set("requestAnimationFrame", (work) => (clock.asked.frames++, clock.frames.set(++clock.count, work), clock.count));
      set("cancelAnimationFrame", (id) => void clock.frames.delete(id));
    }
    if (hasDocument) set("document", this.document);
    set("addEventListener", window.addEventListener.bind(window));
    set("removeEventListener", window.removeEventListener.bind(window));
    set("location", { href: "https://example.test/chat" });
    set("WebSocket", FakeSocket);
    set("EventSource", FakeSource);
    set("fetch", async (url, request) => {
      this.requests.push({ url, ...request });
      if (this.answer instanceof Error) throw this.answer;
      return this.answer;
    });
    Date.now = () => clock.now;
    performance.now = () => (clock.now += clock.slow);
    Math.random = () => this.random;
    console.error = (...what) => void this.errors.push(what);
    t.after(() => {
      this.streams?.close();
      for (const [name, found] of kept) {
        if (found) Object.defineProperty(globalThis, name, found);
        else delete globalThis[name];
      }
      Date.now = now;
      Math.random = random;
      console.error = error;
      delete performance.now;
      if (this.errors.length) throw new Error(`on console.error: ${this.errors.map((each) => each.join(" ")).join("; ")}`);
    });
  }

  // `hello: null` leaves the socket unopened.
  connect({ hello = {}, base = "/streams", ...options } = {}) {
    this.streams = connect(base, options);
    if (hello) this.socket.open(hello);
    return this.streams;
  }

  get socket() {
    return this.sockets.at(-1);
  }

  // The EventSources that are not closed, by what follows `/streams`.
  get listening() {
    const open = this.sources.filter((source) => !source.isClosed);
    return Object.fromEntries(open.map((source) => [source.url.replace("/streams", ""), source]));
  }

  tick(ms) {
    this.clock.tick(ms);
  }

  frame() {
    return this.clock.frame();
  }

  hide(hidden = true) {
    this.document.hidden = hidden;
    this.document.dispatchEvent(new Event("visibilitychange"));
  }

  happen(type, members = {}) {
    this.window.dispatchEvent(Object.assign(new Event(type), members));
  }

  // What came on console.error until now, which the test expected.
  expect(number) {
    const { errors } = this;
    this.errors = [];
    if (errors.length !== number) throw new Error(`${errors.length} and not ${number} on console.error: ${errors}`);
    return errors;
  }

  // A stream with a counting listener that reads as a page does, and the server's script for it; `greeted` unless told.
  open(sid = "a", { isGreeted = true, ...how } = {}) {
    const stream = this.streams.open(sid);
    const script = new Script(sid);
    const told = { count: 0, last: null };
    told.stop = stream.subscribe(() => {
      told.count++;
      told.last = stream.snapshot();
    });
    if (isGreeted) this.socket.say(script.subscribed(how));
    told.count = 0;
    return { stream, script, told };
  }

  // A stream with one open message m1 with one open part, p 2.
  talk(sid = "a", text = "") {
    const made = this.open(sid);
    this.socket.say(made.script.start("m1"), made.script.part("m1"), ...(text ? [made.script.delta(2, text)] : []));
    this.frame();
    made.told.count = 0;
    return made;
  }
}

// The server's frames of one stream, numbered as it does.
export class Script {
  epoch = "epoch123";
  seq = 0;
  lengths = new Map();
  parts = new Map();

  constructor(sid) {
    this.sid = sid;
  }

  subscribed(members = {}) {
    return { t: "subscribed", sid: this.sid, epoch: this.epoch, floor: 0, head: this.seq, open: [], ...members };
  }

  reset(members = {}) {
    this.seq = members.floor ?? 0;
    return { ...this.subscribed(), t: "reset", reason: "trimmed", ...members };
  }

  event(k = "note", d = null) {
    return { t: "event", sid: this.sid, seq: ++this.seq, k, d };
  }

  start(mid, role = "assistant", meta = {}) {
    this.parts.set(mid, 0);
    return this.event("message.start", { mid, role, meta });
  }

  part(mid, kind = "text", meta = {}) {
    const part = this.parts.get(mid) ?? 0;
    this.parts.set(mid, part + 1);
    const frame = this.event("part.start", { mid, part, kind, meta });
    this.lengths.set(frame.seq, 0);
    return frame;
  }

  delta(p, s, off = this.lengths.get(p)) {
    this.lengths.set(p, off + [...s].length);
    return { t: "delta", sid: this.sid, p, off, s };
  }

  partEnd(p, mid = "m1", members = {}) {
    return this.event("part.end", { mid, p, len: this.lengths.get(p), ...members });
  }

  end(mid = "m1", members = {}) {
    return this.event("message.end", { mid, status: "complete", parts: [], ...members });
  }
}

// Texts of a stream, by message.
export const texts = (stream) => stream.snapshot().messages.map(({ parts }) => parts.map(({ text }) => text));
