// The browser client of Headrace: docs/browser.md. Times are milliseconds.

const HIDDEN = 250; // between notifications, if hidden
const SUMMARY = 334; // of `activity`
const SLICE = 8; // of folding
const PATIENCE = 10_000; // with a try
const MAX_SOURCES = 4; // of six connections to a host
const MAX_KEPT = 2_000; // messages, events

const { freeze } = Object;
let ids = 0;

export const connect = (base = "/streams", options = {}) => new Client(base, options);

function report(culprit, ...what) {
  if (!culprit.isReported) console.error("headrace:", ...what);
  culprit.isReported = true;
}

const failure = (code, message = code) => Object.assign(new Error(message), { code });

class Listeners {
  all = new Set();

  subscribe = (listener) => {
    const entry = { listener };
    this.all.add(entry);
    return () => void this.all.delete(entry);
  };

  tell() {
    for (const entry of [...this.all]) {
      try {
        if (this.all.has(entry)) entry.listener();
      } catch (error) {
        report(entry, error);
      }
    }
  }
}

class Stream extends Listeners {
  epoch = null;
  isAwaiting = true; // what comes before the answer is old
  error = null;
  lostAt = null;

  constructor(client, sid) {
    super();
    this.client = client;
    this.sid = sid;
    this.forget(0);
  }

  forget(seq) {
    this.seq = this.head = seq;
    this.messages = new Map(); // open ones
    this.parts = new Map(); // open ones
    this.events = freeze([]);
    this.views = [];
    this.dropped = 0;
    this.stale = new Set();
    this.chars = this.charsTold = 0;
    this.stateTold = this.urgent = null;
    this.view = this.messagesView = this.summary = null;
  }

  get isFull() {
    return this.client.focused?.has(this.sid) ?? true;
  }

  get cursor() {
    if (this.epoch === null) return undefined;
    let token = `${this.epoch}.${this.seq}`;
    for (const [p, { length }] of this.parts) {
      const pair = `.${p}~${length}`;
      if (length && token.length + pair.length <= 2_048) token += pair;
    }
    return token;
  }

  greet({ t, epoch, floor, head, open }) {
    if (t === "reset" || epoch !== this.epoch) {
      this.forget(floor);
      this.epoch = epoch;
      for (const message of open) {
        this.startMessage(message);
        for (const part of message.parts) this.startPart(part.p, message.mid, part);
      }
    }
    this.isAwaiting = false;
    this.error = this.stateTold = null;
    this.learn(head, true);
  }

  event({ seq, k, d }) {
    if (seq <= this.seq) return;
    if (seq > this.seq + 1) return this.lose();
    this.seq = seq; // first: one that makes no sense is passed over
    if (this.urgent?.seq <= seq) this.urgent = null;
    if (k === "message.start") this.startMessage(d);
    else if (k === "part.start") this.startPart(seq, d.mid, d);
    else if (k === "part.end") this.endPart(d);
    else if (k === "message.end") this.endMessage(d);
    else if (!/^(message|part)\./.test(k)) this.events = freeze([...this.events, freeze({ seq, k, d })].slice(-MAX_KEPT));
    this.learn(seq, !k.startsWith("part."));
  }

  delta({ p, off, s }) {
    const part = this.parts.get(p);
    if (!part) return;
    if (off > part.length) return this.lose();
    const fresh = points(s).slice(part.length - off);
    if (!fresh.length) return;
    part.runs.push(...[].concat(fresh));
    part.length += fresh.length;
    this.chars += fresh.length;
    this.change(part);
    this.learn(0);
  }

  startMessage({ mid, role, meta }) {
    const at = this.dropped + this.views.push(null) - 1;
    const message = { mid, role, status: "open", error: null, meta, usage: null, parts: [], at };
    this.messages.set(mid, message);
    this.stale.add(message);
    if (this.views.length <= MAX_KEPT) return;
    this.views.shift();
    this.dropped++;
  }

  startPart(p, mid, { kind, meta }) {
    const message = this.messages.get(mid);
    const part = { id: ++ids, kind, meta, text: "", runs: [], length: 0, open: true, message };
    message.parts.push(part);
    this.parts.set(p, part);
    this.change(part);
  }

  endPart({ p, len, s }) {
    const part = this.parts.get(p);
    if (!part) return;
    this.change(part);
    if (s === undefined && len !== part.length) {
      this.seq--;
      this.chars -= part.length;
      rewrite(part, "");
      return this.lose();
    }
    if (s !== undefined && s !== read(part)) rewrite(part, s);
    part.open = false;
    this.parts.delete(p);
  }

  endMessage({ mid, status, error = null, usage = null }) {
    this.stale.add(Object.assign(this.messages.get(mid), { status, error, usage }));
    this.messages.delete(mid);
  }

  lose() {
    const again = () => this.status !== "closed" && this.client.carrier?.subscribe(this);
    const place = this.seq + this.chars;
    this.isAwaiting = true;
    this.learn(0);
    if (place === this.lostAt) setTimeout(again, 1_000);
    else again();
    this.lostAt = place;
  }

  heed({ state, head, chars }) {
    if (this.isFull && this.client.isTalking) return;
    const isNews = head > this.head || this.isAwaiting;
    [this.stateTold, this.charsTold, this.summary, this.isAwaiting] = [state, chars, null, false];
    this.client.isNews = true;
    if (isNews) this.learn(head);
  }

  notify({ seq, k, d }) {
    if (seq <= this.seq) return;
    this.urgent = freeze({ seq, k, d });
    this.learn(seq, true);
  }

  refuse({ code, msg }) {
    this.error = freeze({ code, msg });
    this.learn(0, true);
  }

  change(part) {
    part.view = null;
    this.stale.add(part.message);
  }

  learn(head, atOnce) {
    this.head = Math.max(this.head, head);
    this.view = this.summary = null;
    this.client.isNews = true;
    if (this.all.size) this.client[atOnce ? "due" : "stale"].add(this);
  }

  snapshot = () => {
    if (this.view) return this.view;
    if (this.stale.size) this.messagesView = null;
    for (const message of this.stale) {
      if (message.at >= this.dropped) this.views[message.at - this.dropped] = look(message);
    }
    this.stale.clear();
    const messages = (this.messagesView ??= freeze([...this.views]));
    const unread = this.isFull ? 0 : this.head - this.seq;
    const { sid, status, error, events } = this;
    return (this.view = freeze({ sid, status, error, messages, events, unread }));
  };

  get status() {
    const { status, streams } = this.client;
    if (streams.get(this.sid) !== this) return "closed";
    if (status !== "live") return status;
    return this.error ? "refused" : this.isAwaiting ? "connecting" : "live";
  }

  summarise() {
    const { head, urgent } = this;
    const state = this.stateTold ?? (this.messages.size ? "streaming" : "idle");
    return (this.summary ??= freeze({ state, head, chars: Math.max(this.chars, this.charsTold), urgent }));
  }

  async cancel(mid) {
    const { sid, client } = this;
    if (client.isTalking) return client.carrier.send({ t: "cancel", sid, mid });
    const { fetch } = client;
    const { ok, status } = await fetch(`${client.base}/${encodeURIComponent(sid)}/cancel`, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ mid }),
    });
    if (!ok) throw failure("refused", `the server answered ${status}`);
  }

  async publish(k, d = null) {
    const { sid, client } = this;
    const frame = { t: "publish", sid, k, d, id: ++ids };
    if (!client.isTalking) throw failure("offline", "no WebSocket");
    if (new Blob([JSON.stringify(frame)]).size > client.maxIn) throw failure("too_large", `over ${client.maxIn} bytes`);
    client.carrier.send(frame);
    return new Promise((resolve, reject) => client.requests.set(frame.id, { resolve, reject }));
  }

  close() {
    const { sid, client } = this;
    if (this.status === "closed") return;
    client.streams.delete(sid);
    this.error || client.carrier?.send({ t: "unsubscribe", sid });
    this.learn(0, true);
    client.flush();
  }
}

// Offsets count code points, strings do not.
const points = (text) => (/[\ud800-\udbff]/.test(text) ? [...text] : text);

function read(part) {
  part.text += part.runs.join("");
  part.runs = [];
  return part.text;
}

function rewrite(part, text) {
  Object.assign(part, { id: ++ids, text, runs: [], length: 0 });
}

function lookAt(part) {
  const { id, kind, meta, open } = part;
  return (part.view ??= freeze({ id, kind, meta, text: read(part), open }));
}

function look({ at, parts, ...message }) {
  return freeze({ ...message, parts: freeze(parts.map(lookAt)) });
}

class Socket {
  openedAt = 0;

  constructor(client) {
    const { href } = new URL(`${client.base}/ws`, globalThis.location?.href);
    this.client = client;
    client.triedAt = Date.now();
    this.socket = new client.WebSocket(href.replace("http", "ws"));
    this.socket.onopen = () => client.opened(this);
    this.socket.onmessage = ({ data }) => client.take(this, data);
    this.socket.onclose = () => client.lost(this);
  }

  close() {
    this.socket.onopen = this.socket.onmessage = this.socket.onclose = null;
    this.socket.close();
  }

  subscribe(...streams) {
    const frames = streams.map((stream) => {
      const { sid, cursor, isFull } = stream;
      stream.isAwaiting = true;
      return { t: "subscribe", sid, cursor, mode: isFull ? "full" : "activity" };
    });
    this.send(...frames);
  }

  send(...frames) {
    let batch = [];
    const put = () => this.openedAt && batch[0] && this.socket.send(batch[1] ? `[${batch}]` : batch[0]);
    for (const text of frames.map((frame) => JSON.stringify(frame))) {
      if (new Blob([`[${batch},${text}]`]).size > this.client.maxIn) {
        put();
        batch = [];
      }
      batch.push(text);
    }
    put();
  }
}

const FRAMES = ["subscribed", "reset", "event", "delta", "activity", "notify", "bye"];

// EventSources: one for each stream in focus, one for the others.
class Sources {
  openedAt = 0;
  all = new Map();

  constructor(client) {
    this.client = client;
    this.send();
    if (!this.all.size) queueMicrotask(() => client.opened(this));
  }

  close(paths = [...this.all.keys()]) {
    for (const path of paths) {
      this.all.get(path)?.close();
      this.all.delete(path);
    }
  }

  subscribe({ sid }) {
    this.close([`/${sid}/events`]);
    this.send();
  }

  send() {
    const streams = [...this.client.streams.values()];
    const full = streams.filter(({ isFull }) => isFull).slice(0, MAX_SOURCES);
    const wanted = new Map(full.map((stream) => [`/${stream.sid}/events`, stream]));
    let query = "";
    for (const stream of streams) {
      if (!full.includes(stream) && query.length < 4_000) query += `&sid=${stream.sid}`;
    }
    if (query) wanted.set(`/activity?${query.slice(1)}`);
    this.close([...this.all.keys()].filter((path) => !wanted.has(path)));
    for (const [path, stream] of wanted) if (!this.all.has(path)) this.listen(path, stream);
  }

  listen(path, stream) {
    const { client } = this;
    const cursor = stream?.cursor;
    const source = new client.EventSource(client.base + path + (cursor ? `?cursor=${cursor}` : ""));
    let isOpen = false;
    this.all.set(path, source);
    if (stream) stream.isAwaiting = true;
    for (const name of FRAMES) source.addEventListener(name, ({ data }) => client.take(this, data));
    source.onopen = () => {
      isOpen = true;
      this.openedAt || client.opened(this);
    };
    source.onerror = () => {
      isOpen ||= source.readyState < 2;
      this.close([path]);
      if (isOpen || !this.all.size) return client.lost(this);
      stream?.refuse({ code: "refused", msg: "not served" });
      client.flush();
    };
  }
}

class Client extends Listeners {
  streams = new Map();
  focused = null;
  status = "connecting";
  carrier = null;
  candidate = null; // Socket tried beside Sources
  failures = 0;
  unopened = 0;
  beat = 15_000;
  maxIn = 65_536;
  requests = new Map();
  queue = [];
  at = 0;
  due = new Set();
  stale = new Set(); // told in the next frame
  disarm = null;
  activity = new Listeners();
  map = new Map();
  isNews = false;
  isResting = false;
  ending = new AbortController();

  constructor(base, options) {
    super();
    const { document, WebSocket, EventSource, fetch } = globalThis;
    const visible = () => !document?.hidden;
    Object.assign(this, { base, WebSocket, EventSource, fetch, visible }, options);
    this.activity.snapshot = this.summarise;
    const on = (type, listener) => globalThis.addEventListener?.(type, listener, this.ending);
    document?.addEventListener("visibilitychange", this.turn, this.ending);
    on("online", this.check);
    on("pagehide", () => this.suspend("waiting"));
    on("pageshow", () => this.isSuspended && this.connect());
    this.ticker = setInterval(this.tick, 2_500);
    this.connect();
  }

  open(sid) {
    const known = this.streams.get(sid);
    if (known) return known;
    const stream = new Stream(this, sid);
    this.streams.set(sid, stream);
    this.carrier?.subscribe(stream);
    stream.learn(0);
    this.flush();
    return stream;
  }

  focus(sids) {
    const streams = [...this.streams.values()];
    const were = streams.filter(({ isFull }) => isFull);
    this.focused = new Set(sids);
    for (const stream of streams) {
      if (stream.isFull === were.includes(stream)) continue;
      stream.stateTold = null;
      stream.learn(0, true);
    }
    this.carrier?.send({ t: "focus", sids: sids.filter((sid) => this.streams.has(sid)) });
    this.flush();
  }

  close() {
    this.ending.abort();
    clearInterval(this.ticker);
    this.suspend("closed");
  }

  get isTalking() {
    return this.carrier instanceof Socket && this.carrier.openedAt > 0;
  }

  connect = () => {
    clearTimeout(this.timer);
    this.isSuspended = false;
    this.startedAt = Date.now();
    const isKeptOut = this.unopened > 1 && this.EventSource;
    this.carrier = isKeptOut ? new Sources(this) : new Socket(this);
    if (isKeptOut && this.hasTalked) this.candidate = new Socket(this);
    this.change("connecting");
  };

  opened(carrier) {
    if (carrier === this.candidate) {
      this.carrier.close();
      [this.carrier, this.candidate] = [carrier, null];
    }
    if (carrier !== this.carrier) return;
    carrier.openedAt = this.startedAt = this.heardAt = Date.now();
    this.isPinged = false;
    if (this.isTalking) {
      this.unopened = 0;
      this.hasTalked = true;
      carrier.subscribe(...this.streams.values());
      if (!this.visible()) carrier.send({ t: "visibility", hidden: true });
    }
    this.change("live");
  }

  // Two Sockets did not open: a proxy? Sources neither: the server is away.
  lost(carrier, pause) {
    carrier.close();
    if (carrier === this.candidate) this.candidate = null;
    if (carrier !== this.carrier) return;
    if (carrier.openedAt && Date.now() - carrier.openedAt >= PATIENCE) this.failures = 0;
    if (!carrier.openedAt) this.unopened = carrier instanceof Socket ? this.unopened + 1 : 0;
    this.drop();
    this.timer = setTimeout(this.connect, pause ?? Math.random() * Math.min(PATIENCE, 500 * 2 ** this.failures++));
    this.change("waiting");
  }

  drop() {
    this.carrier?.close();
    this.candidate?.close();
    this.carrier = this.candidate = null;
    clearTimeout(this.timer);
    for (const { reject } of this.requests.values()) reject(failure("lost", "no answer came"));
    this.requests.clear();
  }

  suspend(status) {
    this.isSuspended = true;
    this.drop();
    this.change(status);
  }

  change(status) {
    if (status === this.status) return;
    this.status = status;
    for (const stream of this.streams.values()) stream.learn(0, true);
    this.flush();
    this.tell();
  }

  get silence() {
    return (Date.now() - this.heardAt) / this.beat;
  }

  check = () => {
    if (this.status === "waiting" && !this.isSuspended) this.connect();
    else if (this.status === "live" && this.silence > 1.5) this.lost(this.carrier, 0);
  };

  // Heartbeats can't be seen, so it asks. Hidden pages come here once a minute: their silence means nothing.
  tick = () => {
    const age = Date.now() - this.startedAt;
    const hasSlept = Date.now() - this.tickedAt > PATIENCE;
    this.tickedAt = Date.now();
    if (this.status === "connecting" && age > PATIENCE) this.lost(this.carrier);
    else if (hasSlept && this.visible()) this.check();
    else if (this.isTalking && this.isPinged && this.silence > 1.5) this.lost(this.carrier, 0);
    else if (this.isTalking && this.silence >= 1 && !this.isPinged) {
      this.isPinged = true;
      this.carrier.send({ t: "ping" });
    } else if (this.carrier instanceof Sources && Date.now() - this.triedAt > 60_000) {
      this.candidate?.close();
      this.candidate = new Socket(this);
    }
  };

  turn = () => {
    if (this.disarm) this.arm();
    this.carrier?.send({ t: "visibility", hidden: !this.visible() });
    if (this.visible()) this.check();
  };

  take(carrier, data) {
    this.heardAt = Date.now();
    this.isPinged = false;
    try {
      for (const frame of [].concat(JSON.parse(data))) this.queue.push([carrier, frame]);
    } catch (error) {
      report(carrier, error, data);
    }
    if (!this.isFolding) this.fold();
  }

  fold = () => {
    const end = performance.now() + SLICE;
    this.isFolding = true;
    while (this.at < this.queue.length) {
      this.receive(...this.queue[this.at++]);
      if (this.at % 32 === 0 && performance.now() > end && this.visible()) break;
    }
    this.queue.splice(0, this.at);
    this.at = 0;
    this.isFolding = this.queue.length > 0;
    if (this.isFolding) setTimeout(this.fold);
    this.flush();
  };

  receive(carrier, frame) {
    try {
      const { t, id, code } = frame;
      const stream = this.streams.get(frame.sid);
      if (t === "subscribed" || t === "reset") stream?.greet(frame);
      else if (t === "event" || t === "delta") stream?.isAwaiting || stream?.[t](frame);
      else if (t === "notify") stream?.notify(frame);
      else if (t === "activity") for (const item of frame.items) this.streams.get(item.sid)?.heed(item);
      else if (t === "hello") [this.beat, this.maxIn] = [frame.ping_s * 1000, frame.max_in];
      else if (t === "bye") this.lost(carrier, frame.retry_ms);
      else if (t === "ack" || (t === "error" && id)) this.settle(id, frame);
      else if (t === "error" && stream?.isAwaiting) stream.error || stream.refuse(frame);
      else if (t === "error" && code === "rate") this.lost(carrier, 1_000);
      else if (t === "error") report(this, frame);
    } catch (error) {
      report(this, error, frame);
    }
  }

  settle(id, { ok, d, error, code = error, msg }) {
    const request = this.requests.get(id);
    this.requests.delete(id);
    if (ok) request?.resolve(d);
    else request?.reject(failure(code, msg));
  }

  flush() {
    for (const stream of this.due) {
      this.due.delete(stream);
      this.stale.delete(stream);
      stream.tell();
    }
    if (this.stale.size && !this.disarm) this.arm();
    if (!this.activity.all.size || this.isResting || this.mapTold === this.summarise()) return;
    this.mapTold = this.map;
    this.isResting = true;
    setTimeout(() => {
      this.isResting = false;
      this.flush();
    }, SUMMARY);
    this.activity.tell();
  }

  summarise = () => {
    if (this.isNews) this.map = new Map([...this.streams].map(([sid, stream]) => [sid, stream.summarise()]));
    this.isNews = false;
    return this.map;
  };

  arm() {
    this.disarm?.();
    if (this.visible() && globalThis.requestAnimationFrame) {
      const frame = requestAnimationFrame(this.draw);
      this.disarm = () => cancelAnimationFrame(frame);
    } else {
      const timer = setTimeout(this.draw, HIDDEN);
      this.disarm = () => clearTimeout(timer);
    }
  }

  draw = () => {
    this.disarm = null;
    for (const stream of this.stale) this.due.add(stream);
    this.flush();
  };
}
