// live.js - draws streams while they grow: one WebSocket for all of them, text folded by its offset, and cursors with
// which to go on after the connection broke (docs/live-protocol.md has the rules). What the server sends goes into the
// page as text only, never as HTML.

const FIRST_RETRY = 500, LAST_RETRY = 10_000, HEALTHY = 10_000; // milliseconds
const MAX_SHOWN = 100; // messages of one stream that stay in the page
const ENDS = { complete: "complete", cancelled: "stopped", aborted: "broken off", error: "failed" };

const element = (id) => document.getElementById(id);
const copy = (id) => element(id).content.firstElementChild.cloneNode(true);
const root = element("live").dataset.root;
const streams = new Map();
let focused, socket, timer;
let failures = 0;

// One stream: what is held of it, and where it is drawn.
class Stream {
  messages = new Map(); // those that are open: mid -> its box
  parts = new Map(); // those that are open: p -> {length, text}; lengths count code points
  epoch = "";
  seq = 0;
  head = 0; // events up to here are replay
  chars = 0;
  isWaiting = true; // for the answer to `subscribe`
  log = document.createElement("div");

  constructor(item) {
    this.sid = item.dataset.sid;
    this.item = item;
    this.button = item.querySelector("button");
    this.button.addEventListener("click", () => focus(this));
  }

  subscribe() {
    this.isWaiting = true;
    const offsets = [...this.parts].map(([p, part]) => `.${p}~${part.length}`).join("");
    const cursor = this.epoch ? `${this.epoch}.${this.seq}${offsets}` : null;
    send({ t: "subscribe", sid: this.sid, cursor, mode: this === focused ? "full" : "activity" });
  }

  receive(frame) {
    if (frame.t === "notify") this.item.querySelector(".news").hidden = false;
    else if (frame.t === "subscribed" || frame.t === "reset") this.greet(frame);
    else if (this.isWaiting) return; // sent before the server knew that something is missing here
    else if (frame.t === "delta") this.grow(frame);
    else if (frame.t === "event") this.apply(frame);
    if (this === focused) this.summarise(this.messages.size ? "streaming" : "idle", this.chars);
  }

  greet({ t, epoch, floor, head, open, reason }) {
    if (t === "reset") this.forget(reason);
    if (!this.epoch) [this.epoch, this.seq] = [epoch, floor];
    for (const message of open) {
      if (!this.messages.has(message.mid)) this.startMessage(message);
      for (const part of message.parts) if (!this.parts.has(part.p)) this.startPart(part.p, message.mid, part);
    }
    [this.head, this.isWaiting] = [head, false];
  }

  // What is held is not continued. If the server has lost it, it stays in the page, as the past; else it comes again.
  forget(reason) {
    for (const box of this.messages.values()) box.querySelector(".end").textContent = ENDS.aborted;
    for (const box of this.log.children) box.classList.add("past");
    if (reason !== "epoch") this.log.replaceChildren();
    else if (this.log.firstChild) this.note("The server was restarted. It no longer has what stands above.");
    this.messages.clear();
    this.parts.clear();
    [this.epoch, this.chars] = ["", 0];
  }

  apply({ seq, k, d }) {
    if (seq <= this.seq) return;
    if (seq > this.seq + 1 || (k === "part.end" && !this.endPart(d))) return this.subscribe();
    this.seq = seq;
    if (k === "message.start") this.startMessage(d);
    else if (k === "part.start") this.startPart(seq, d.mid, d);
    else if (k === "message.end") this.endMessage(d);
    else if (k !== "part.end") this.note(`${k}: ${d.text}`, d.mid);
  }

  grow({ p, off, s }) {
    const part = this.parts.get(p);
    if (part && off > part.length) return this.subscribe();
    const fresh = part ? [...s].slice(part.length - off) : [];
    if (!fresh.length) return;
    part.text.appendData(fresh.join(""));
    part.length += fresh.length;
    this.chars += fresh.length;
  }

  startMessage({ mid, role, meta }) {
    const box = copy("message");
    box.dataset.role = role;
    box.querySelector(".role").textContent = role === "user" ? "You" : meta.title;
    this.messages.set(mid, box);
    this.log.append(box);
    if (this.log.childElementCount > MAX_SHOWN) this.log.firstElementChild.remove();
  }

  startPart(p, mid, { kind, meta }) {
    const box = copy("part");
    box.dataset.kind = kind;
    box.querySelector(".kind").textContent = meta.title ?? kind;
    this.parts.set(p, { length: 0, text: box.querySelector(".text").appendChild(new Text()) });
    this.messages.get(mid)?.querySelector(".parts").append(box);
  }

  // False if the text is not the server's; then all of it must come again.
  endPart({ p, len, s }) {
    const part = this.parts.get(p);
    if (part && s === undefined && part.length !== len) {
      this.chars -= part.length;
      [part.length, part.text.data] = [0, ""];
      return false;
    }
    if (part && s !== undefined) part.text.data = s;
    this.parts.delete(p);
    return true;
  }

  endMessage({ mid, status, error, usage }) {
    const box = this.messages.get(mid);
    this.messages.delete(mid);
    if (!box || box.dataset.role === "user") return;
    const end = box.querySelector(".end");
    end.textContent = error ? `${ENDS[status]}: ${error}` : usage ? `${usage.letters} letters` : ENDS[status];
    if (this === focused && this.seq > this.head) tell(`${this.button.textContent}: ${ENDS[status]}.`);
  }

  note(text, mid) {
    const line = copy("note");
    line.textContent = text;
    (this.messages.get(mid)?.querySelector(".parts") ?? this.log).append(line);
  }

  summarise(state, chars) {
    this.item.dataset.state = state;
    this.item.querySelector(".mode").textContent = state === "streaming" ? "writing" : "idle";
    this.item.querySelector(".chars").textContent = chars.toLocaleString("en");
  }
}

function focus(stream) {
  focused = stream;
  for (const each of streams.values()) each.button.setAttribute("aria-pressed", each === stream);
  stream.item.querySelector(".news").hidden = true;
  element("name").textContent = element("whom").textContent = stream.button.textContent;
  element("paper").replaceChildren(stream.log);
  tell("");
  send({ t: "focus", sids: [stream.sid] });
}

function receive(frame) {
  if (frame.t === "error") tell(frame.msg);
  else if (frame.t !== "activity") streams.get(frame.sid)?.receive(frame);
  else for (const { sid, state, chars } of frame.items) streams.get(sid)?.summarise(state, chars);
}

function send(frame) {
  if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify(frame));
}

function tell(text) {
  element("notice").textContent = text;
}

// Each thing once: while the server is away, every new try would be read aloud otherwise.
function showConnection(state, text) {
  const shown = element("connection");
  shown.dataset.state = state;
  if (shown.textContent !== text) shown.textContent = text;
}

function connect() {
  timer = clearTimeout(timer);
  let openedAt, retry;
  socket = new WebSocket(new URL(`${root}/streams/ws`, location).href.replace(/^http/, "ws"));
  socket.onopen = () => {
    openedAt = performance.now();
    showConnection("live", "Connected");
    for (const stream of streams.values()) stream.subscribe();
    send({ t: "visibility", hidden: document.hidden });
    post("/live");
  };
  socket.onmessage = ({ data }) => {
    const frames = JSON.parse(data);
    retry = frames.find((frame) => frame.t === "bye")?.retry_ms;
    frames.forEach(receive);
  };
  socket.onclose = () => {
    if (performance.now() - openedAt > HEALTHY) failures = 0;
    const backoff = Math.min(LAST_RETRY, FIRST_RETRY * 2 ** failures++) * (0.5 + Math.random() / 2);
    showConnection("waiting", retry === undefined ? "No connection, trying again …" : "The server is restarting …");
    timer = setTimeout(connect, retry ?? backoff);
  };
}

// The server's answer; nothing if it refused, and then the reader has been told.
async function post(path, body = {}) {
  const headers = { "Content-Type": "application/json" };
  const response = await fetch(root + path, { method: "POST", headers, body: JSON.stringify(body) }).catch(() => {});
  const answer = await response?.json().catch(() => {});
  if (response?.ok) return answer;
  tell(answer?.error ?? "The server did not do it. Try again.");
}

for (const item of document.querySelectorAll("[data-sid]")) streams.set(item.dataset.sid, new Stream(item));
focus(streams.values().next().value);
connect();

element("start").addEventListener("click", async () => {
  if ((await post("/live"))?.started.length === 0) tell("All are at work.");
});
element("stop").addEventListener("click", async () => {
  if ((await post(`/streams/${focused.sid}/cancel`))?.cancelled.length === 0) tell("Nothing is being written.");
});
element("ask").addEventListener("submit", async (event) => {
  event.preventDefault();
  if (await post(`/live/${focused.sid}`, { text: element("question").value })) event.target.reset();
});
document.addEventListener("visibilitychange", () => {
  send({ t: "visibility", hidden: document.hidden });
  if (!document.hidden && timer) connect();
});
addEventListener("online", () => timer && connect());
