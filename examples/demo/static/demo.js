// demo.js - the page: one connection for all streams, of which one is in focus, as the address says behind its #.

import { connect } from "../../streams/client.js";
import { Pane } from "./pane.js";
import { Paper, write } from "./paper.js";
import { Row } from "./rows.js";
import { Teller } from "./teller.js";

const CHAT = "chat", NONE = "none"; // what the address may say, beside the other streams
const PATIENCE = 1_000; // milliseconds that the connection may be gone before the page says so
const PACE = 900; // milliseconds between two writings of the numbers in the list
const CONNECTION = { connecting: "Connecting …", live: "Connected", waiting: "No connection, trying again …" };

const element = (id) => document.getElementById(id);
const { root, streams: base } = element("demo").dataset;
const streams = connect(base);
const rows = new Map([...document.querySelectorAll("[data-sid]")].map((item) => [item.dataset.sid, new Row(item)]));
const stressed = [...element("stress-rows").children].map((item) => item.dataset.sid);
const open = new Map(); // sid -> {stream, paper}
const pane = new Pane(element("paper"), element("end"));
const blank = element("blank").content.firstElementChild;
const teller = new Teller(element("told"));
let focused; // the row; nothing if no stream is in focus
let stop; // ends the subscription to its stream
let timer; // until it is said that the connection is gone
let later; // the timer of the next `list`
let listedAt = -Infinity;
let isAsking = false;

window.demo = { streams }; // for tests and benchmarks: what is drawn should be what `streams` has

// -- the stream in focus

function choose() {
  const sid = location.hash.slice(1);
  focused = sid === NONE ? undefined : (rows.get(sid) ?? rows.get(CHAT));
  stop?.();
  showStress();
  streams.focus(focused ? [focused.sid] : []);
  for (const row of rows.values()) row.choose(row === focused);
  teller.turn(focused?.name);
  pane.show(focused ? open.get(focused.sid).paper.element : blank);
  stop = focused && open.get(focused.sid).stream.subscribe(draw);
  describe();
  draw();
  list();
}

function describe() {
  const isAsked = focused && !stressed.includes(focused.sid);
  const name = focused?.name ?? "Nothing in focus";
  document.title = `${name} · Headrace demo`;
  write(element("name"), name);
  write(element("about"), focused?.about ?? "");
  element("leave").hidden = !focused;
  element("question").disabled = element("send").disabled = element("tries").inert = !isAsked;
  element("question").placeholder = isAsked ? `Ask ${focused.name} something` : "Choose an agent to ask";
  tell("");
}

function draw() {
  if (!focused) return allowStop(false);
  const { stream, paper } = open.get(focused.sid);
  const { messages, error } = stream.snapshot();
  paper.draw(messages);
  teller.hear(messages);
  if (error) tell(error.msg);
  allowStop(paper.isOpen);
}

// It keeps the keyboard's focus, which a disabled button loses.
function allowStop(isOpen) {
  const disabled = String(!isOpen);
  if (element("stop").ariaDisabled !== disabled) element("stop").ariaDisabled = disabled;
}

// -- all streams

function keep(sid) {
  if (!open.has(sid)) open.set(sid, { stream: streams.open(sid), paper: new Paper() });
}

function leave(sid) {
  open.get(sid)?.stream.close();
  open.delete(sid);
}

// Numbers once in PACE, states at once: what costs most is not what is written here, but that the browser draws at all.
function list() {
  const isDue = performance.now() - listedAt >= PACE;
  later = isDue ? clearTimeout(later) : (later ?? setTimeout(list, PACE));
  if (isDue) listedAt = performance.now();
  const activity = streams.activity.snapshot();
  for (const [sid, { stream }] of open) {
    const summary = activity.get(sid);
    if (summary) rows.get(sid).show(summary, sid === focused?.sid ? 0 : stream.snapshot().unread, isDue);
  }
}

// Their rows are there while they write or while one of them is in focus.
function showStress() {
  const isOn = element("stress").checked;
  for (const sid of stressed) isOn || sid === focused?.sid ? keep(sid) : leave(sid);
  element("stress-rows").hidden = !isOn && !stressed.includes(focused?.sid);
}

function setStress(isOn) {
  element("stress").checked = isOn;
  showStress();
}

// -- the connection

function follow() {
  if (streams.status === "live") {
    timer = clearTimeout(timer);
    showConnection("live");
    startAgents();
  } else timer ??= setTimeout(showConnection, PATIENCE, "waiting");
}

function showConnection(state) {
  const shown = element("connection");
  if (shown.dataset.state === state) return;
  if (shown.dataset.state !== "connecting") teller.tell(CONNECTION[state]);
  shown.dataset.state = state;
  write(shown, CONNECTION[state]);
}

// -- what the server is asked to do

// The server's answer; nothing if it refused, and then the reader has been told.
async function post(path, body = {}) {
  tell("");
  const headers = { "Content-Type": "application/json" };
  const response = await fetch(root + path, { method: "POST", headers, body: JSON.stringify(body) }).catch(() => {});
  const answer = await response?.json().catch(() => {});
  if (response?.ok) return answer;
  tell(answer?.error ?? "The server did not do it. Try again.");
}

async function startAgents() {
  const answer = await post("");
  if (answer) setStress(answer.stress);
  return answer;
}

// Once at a time: who clicks twice asks once.
async function ask(text) {
  if (isAsking || !focused || !text.trim()) return;
  isAsking = true;
  const answer = await post(`/${focused.sid}`, { text });
  isAsking = false;
  return answer;
}

async function cancel() {
  if (element("stop").ariaDisabled === "true") return tell("Nothing is being written.");
  tell("");
  await open.get(focused.sid).stream.cancel().catch(() => tell("The server could not be told. Try again."));
}

function tell(text) {
  write(element("notice"), text);
  if (text) teller.tell(text);
}

// -- the reader

element("ask").addEventListener("submit", async (event) => {
  event.preventDefault();
  const { value } = element("question");
  element("question").value = ""; // for the next one, which may be typed while this one is on its way
  if (!(await ask(value))) element("question").value ||= value;
});
element("question").addEventListener("keydown", (event) => {
  if (event.isComposing) return;
  if (event.key === "Escape") cancel();
  if (event.key !== "Enter" || event.shiftKey) return;
  event.preventDefault();
  element("ask").requestSubmit();
});
element("tries").addEventListener("click", ({ target }) => target.closest("button") && ask(target.textContent));
element("stop").addEventListener("click", cancel);
element("start").addEventListener("click", async () => {
  if ((await startAgents())?.started.length === 0) tell("All are at work.");
});
element("stress").addEventListener("change", async ({ target }) => {
  const answer = await post("/stress", { on: target.checked });
  setStress(answer ? answer.stress : !target.checked);
});
// The stream in focus, chosen again, is left.
document.querySelector(".lists").addEventListener("click", (event) => {
  if (!event.target.closest("[aria-current]")) return;
  event.preventDefault();
  location.hash = NONE;
});
addEventListener("hashchange", choose);

for (const sid of rows.keys()) if (!stressed.includes(sid)) keep(sid);
choose();
streams.subscribe(follow);
streams.activity.subscribe(list);
follow();
