// naive.js - how a page is often written: all streams in full, and for each message of the socket the text that has
// grown is put into the page whole, its number is written, and the page scrolls to its end. Text of streams that nobody
// looks at is kept in elements that are hidden. No more is done wrong than that: see benchmarks/feel.py.
//
// `?deltas=0`: the server sends whole texts, four a second for each stream; else deltas.

const { streams: base } = document.getElementById("demo").dataset;
const paper = document.getElementById("paper");
const rows = new Map([...document.querySelectorAll("[data-sid]")].map((item) => [item.dataset.sid, item]));
const streams = new Map();
const copy = (id) => document.getElementById(id).content.firstElementChild.cloneNode(true);

paper.replaceChildren();
document.getElementById("stress-rows").hidden = false;
for (const sid of rows.keys()) {
  const log = document.createElement("div");
  log.className = "log";
  paper.append(log);
  streams.set(sid, { log, chars: 0, seq: 0, parts: new Map(), messages: new Map() });
}

function choose() {
  for (const [sid, { log }] of streams) log.hidden = `#${sid}` !== location.hash;
}

function startMessage(stream, { mid, role }) {
  const article = copy("message");
  article.dataset.mid = mid;
  article.dataset.role = role;
  stream.log.append(article);
  stream.messages.set(mid, article);
}

function startPart(stream, p, mid, kind) {
  const element = copy("part");
  element.dataset.kind = kind;
  stream.messages.get(mid).querySelector(".parts").append(element);
  const text = element.querySelector(".text");
  text.dataset.part = p;
  stream.parts.set(p, { element: text, text: "" });
}

function render(sid, stream, part) {
  part.element.textContent = part.text;
  const row = rows.get(sid);
  row.querySelector(".chars").textContent = stream.chars.toLocaleString("en");
  row.querySelector(".state").textContent = "writing";
  if (!stream.log.hidden) part.element.scrollIntoView({ block: "end" });
}

function take(frame) {
  const { t, sid, p, s, k, d } = frame;
  const stream = streams.get(sid);
  if (t === "subscribed") {
    for (const { mid, role, parts } of frame.open) {
      startMessage(stream, { mid, role });
      for (const part of parts) startPart(stream, part.p, mid, part.kind);
    }
  } else if (t === "event" && k === "message.start") startMessage(stream, d);
  else if (t === "event" && k === "part.start") startPart(stream, frame.seq, d.mid, d.kind);
  else if (t === "event" && k === "part.end" && d.s !== undefined) take({ t: "cumulative", sid, p: d.p, s: d.s });
  else if (t === "delta" || t === "cumulative") {
    const part = stream.parts.get(p);
    stream.chars += t === "delta" ? s.length : s.length - part.text.length;
    part.text = t === "delta" ? part.text + s : s;
    render(sid, stream, part);
  }
}

choose();
addEventListener("hashchange", choose);
const url = new URL(`${base}/ws${location.search}`, location.href);
url.protocol = url.protocol.replace("http", "ws");
const socket = new WebSocket(url);
socket.onopen = () => {
  for (const sid of streams.keys()) socket.send(JSON.stringify({ t: "subscribe", sid }));
  document.getElementById("connection").dataset.state = "live";
};
socket.onmessage = ({ data }) => JSON.parse(data).forEach(take);
