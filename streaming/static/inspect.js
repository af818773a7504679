// inspect.js - draws what a process does: samples of the last five minutes, one a second, from inspect/events. They are
// events of an ordinary stream: what is kept of it comes first, and a connection that broke goes on behind the last one.
// What the server sends goes into the page as text only, never as HTML.

const WINDOW = 300; // seconds that the plots show
const HOLE = 2.5; // seconds without a sample that the plots show as a hole
const SILENCE = 10_000; // milliseconds without a sample after which the connection is made anew
const REORDER = 5; // seconds for which rows stay where they are
const LAST_BOUND = 2.5; // seconds; a longer delay is not measured any more
const HEIGHT = 120, LEFT = 46, RIGHT = 8, TOP = 8, BOTTOM = 20; // of a plot, in pixels
const SVG = "http://www.w3.org/2000/svg";

const element = (id) => document.getElementById(id);
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const plain = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const tenth = new Intl.NumberFormat("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });

// -- numbers as text

const amount = (number) => (number < 100_000 ? plain : short).format(number);
const count = (number) => (number < 100_000 ? whole : short).format(number);
const rate = (number) => (number && number < 10 ? tenth : number < 100_000 ? whole : short).format(number);
const ratio = (number) => (number === null ? "–" : tenth.format(number));

function bytes(number) {
  const unit = ["B", "kB", "MB", "GB"].findIndex((_, power) => number < 1000 ** (power + 1) || power === 3);
  return `${(unit ? tenth : whole).format(number / 1000 ** unit)} ${["B", "kB", "MB", "GB"][unit]}`;
}

function time(seconds) {
  if (seconds >= 1) return `${tenth.format(seconds)} s`;
  return `${(seconds && seconds < 0.01 ? tenth : whole).format(seconds * 1000)} ms`;
}

const mark = (seconds) => (seconds >= 1 ? `${plain.format(seconds)} s` : `${plain.format(seconds * 1000)} ms`);

const gap = (seconds) => (seconds ? time(seconds) : "< 1 ms");

function delay(seconds) {
  if (seconds === null) return "–";
  return seconds > LAST_BOUND ? `> ${time(LAST_BOUND)}` : `≤ ${time(seconds)}`;
}

function age(seconds) {
  const [days, hours, minutes] = [86_400, 3_600, 60].map((unit) => Math.floor(seconds / unit));
  if (days) return `${days} d ${hours % 24} h`;
  if (hours) return `${hours} h ${minutes % 60} min`;
  return minutes ? `${minutes} min ${Math.floor(seconds % 60)} s` : `${Math.floor(seconds)} s`;
}

// -- what is shown: a name, its value, and what says more about it

const CARRIERS = { websocket: "ws", sse: "sse", ndjson: "ndjson" };

function carried({ connections }) {
  const used = Object.keys(CARRIERS).filter((carrier) => connections[carrier]);
  return used.map((carrier) => `${count(connections[carrier])} ${CARRIERS[carrier]}`).join(", ") || "none";
}

const FIGURES = [
  ["Connections", ({ connections }) => count(Object.values(connections).reduce((sum, each) => sum + each, 0)), carried],
  ["Streams", ({ streams }) => count(streams.all), ({ streams }) => `${count(streams.streaming)} streaming`],
  ["Tokens / s", ({ rates }) => rate(rates.tokens), ({ rates }) => `in ${rate(rates.runs)} runs`],
  ["Messages / s", ({ rates }) => rate(rates.messages), ({ rates }) => `${rate(rates.flushes)} flushes`],
  ["Bytes / s", ({ rates }) => bytes(rates.bytes), ({ rates }) => `${rate(rates.events)} events`],
  ["Coalescing", ({ coalescing }) => ratio(coalescing), () => "tokens to a run"],
  ["Hub gap", (sample) => gap(sample.gap), () => "longest standstill"],
];

const FACTS = [
  ["Readers", ({ subscribers: { full, background } }) => `${count(full)} in full, ${count(background)} in background`],
  ["Producers", ({ producers }) => count(producers)],
  ["Append to send", ({ delay: { p50, p95 } }) =>
    p50 === null ? "nothing was sent" : `half ${delay(p50)}, 95 % ${delay(p95)}`],
  ["Pages", ({ pages }) => `${count(pages.open)} open, ${pages.rendering} rendering, ${pages.waiting} waiting`],
  ["Since the start", ({ resets, refused, slow }) =>
    `${count(resets)} resets, ${count(refused)} refused, ${count(slow)} closed as slow`],
];

// `least` is the smallest top of the scale.
const PLOTS = [
  { name: "Tokens / s", least: 10, value: ({ rates }) => rates.tokens, text: rate, tick: amount },
  { name: "Messages / s", least: 10, value: ({ rates }) => rates.messages, text: rate, tick: amount },
  { name: "Append to send, 95 %", least: 0.1, value: (sample) => sample.delay.p95, text: delay, tick: mark },
  { name: "Longest hub gap", least: 0.01, value: (sample) => sample.gap, text: gap, tick: mark },
];

const COLUMNS = [
  ["Stream", ({ sid }) => sid],
  ["State", ({ state }) => state],
  ["Chars / s", (stream) => rate(stream.rate)],
  ["Chars", ({ chars }) => whole.format(chars)],
  ["Readers", ({ full }) => count(full)],
  ["Background", ({ background }) => count(background)],
  ["Open", ({ open }) => count(open)],
  ["Head", ({ head }) => whole.format(head)],
  ["Log", ({ log }) => bytes(log)],
];

// -- what has come

let points = []; // of the plots: {time, values}
let latest; // sample
let seq = 0;
let frame = 0;

function forget(floor) {
  [points, latest, seq] = [[], undefined, floor];
  [order, orderedAt] = [new Map(), 0];
}

function take(event) {
  if (event.seq <= seq || event.k !== "inspect.sample") return;
  seq = event.seq;
  latest = event.d;
  points.push({ time: latest.time, values: PLOTS.map((plot) => plot.value(latest)) });
  while (points[0].time < latest.time - WINDOW) points.shift();
  frame ||= requestAnimationFrame(show); // once for all that comes at a time; not while the page is hidden
}

function show() {
  frame = 0;
  if (!latest) return;
  write(element("pid"), latest.pid);
  write(element("uptime"), age(latest.uptime));
  for (const tell of tellers) tell(latest);
  PLOTS.forEach(draw);
  list(latest);
}

// Text that has not changed is left alone, and so is what somebody has selected.
function write(node, text) {
  text = String(text);
  if (node.textContent !== text) node.textContent = text;
}

function make(name, parent, text = "") {
  const node = parent.appendChild(document.createElement(name));
  node.textContent = text;
  return node;
}

// -- figures

const tellers = [];

function tellIn(list, [name, value, detail]) {
  const box = make("div", list);
  make("dt", box, name);
  const shown = make("dd", box, "–");
  const more = detail && make("dd", box, "\u00a0");
  if (more) more.className = "detail";
  tellers.push((sample) => {
    write(shown, value(sample));
    if (more) write(more, detail(sample));
  });
}

// -- plots

function draft(plot) {
  const figure = make("figure", element("plots"));
  const caption = make("figcaption", figure);
  make("span", caption, plot.name);
  plot.now = make("b", caption, "–");
  plot.svg = figure.appendChild(document.createElementNS(SVG, "svg"));
  plot.svg.setAttribute("role", "img");
  plot.svg.setAttribute("aria-label", plot.name);
  plot.grid = add(plot, "path", { class: "grid" });
  plot.area = add(plot, "path", { class: "area" });
  plot.line = add(plot, "path", { class: "line" });
  plot.ticks = [0, 1, 2].map(() => add(plot, "text", { "text-anchor": "end", x: LEFT - 6 }));
  plot.start = add(plot, "text", { x: LEFT, y: HEIGHT - 5 });
  plot.end = add(plot, "text", { "text-anchor": "end", y: HEIGHT - 5 });
  plot.start.textContent = `${WINDOW / 60} min ago`;
  plot.end.textContent = "now";
}

function add(plot, name, attributes) {
  const node = plot.svg.appendChild(document.createElementNS(SVG, name));
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  return node;
}

// The next of 1, 2, 5, 10, 20 … that is not below.
function ceiling(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((top) => top >= value * 0.9999);
}

function draw(plot, index) {
  const width = plot.svg.clientWidth;
  const known = points.map(({ values }) => values[index]).filter((value) => value !== null);
  const highest = Math.max(0, ...known);
  const top = ceiling(Math.max(plot.least, highest));
  const floor = HEIGHT - BOTTOM;
  const x = (moment) => (width - RIGHT - ((latest.time - moment) / WINDOW) * (width - LEFT - RIGHT)).toFixed(1);
  const y = (value) => (floor - (value / top) * (floor - TOP)).toFixed(1);
  const { line, area } = trace(points, index, x, y, floor);
  plot.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
  plot.line.setAttribute("d", line);
  plot.area.setAttribute("d", area);
  plot.grid.setAttribute("d", [0, top / 2, top].map((value) => `M${LEFT} ${y(value)}H${width - RIGHT}`).join(""));
  plot.end.setAttribute("x", width - RIGHT);
  [0, top / 2, top].forEach((value, number) => {
    plot.ticks[number].setAttribute("y", Number(y(value)) + 4);
    write(plot.ticks[number], value ? plot.tick(value) : "0");
  });
  const now = plot.text(plot.value(latest));
  write(plot.now, now);
  plot.svg.setAttribute("aria-label", `${plot.name}: ${now} now, at most ${plot.text(highest)} in the last minutes`);
}

// A line, and the area below it, in as many pieces as there are holes.
function trace(points, index, x, y, floor) {
  let line = "", area = "";
  let last; // point of the piece that is being drawn
  for (const { time, values } of points) {
    const value = values[index];
    const goesOn = last !== undefined && value !== null && time - last < HOLE;
    if (last !== undefined && !goesOn) area += `V${floor}Z`;
    if (value !== null) {
      line += goesOn ? `L${x(time)} ${y(value)}` : `M${x(time)} ${y(value)}h0`;
      area += goesOn ? `L${x(time)} ${y(value)}` : `M${x(time)} ${floor}V${y(value)}`;
    }
    last = value === null ? undefined : time;
  }
  return { line, area: last === undefined ? area : `${area}V${floor}Z` };
}

// -- the table

let order = new Map(); // sid -> place
let orderedAt = 0;

// Those that stream come first, then the busiest; but rows keep their places for some seconds, so that they can be read.
function arrange({ time, busiest }) {
  if (time - orderedAt >= REORDER) {
    order = new Map(busiest.map(({ sid }, place) => [sid, place]));
    orderedAt = time;
  }
  const place = ({ sid, state }) => (order.get(sid) ?? busiest.length) + (state === "idle" ? 1_000 : 0);
  return [...busiest].sort((one, other) => place(one) - place(other));
}

function list(sample) {
  const shown = arrange(sample);
  const all = count(sample.streams.all);
  write(element("caption"), shown.length < sample.streams.all ? `The ${shown.length} busiest of ${all} streams`
    : shown.length ? "Streams, the busiest first" : "There are no streams");
  const body = element("rows");
  while (body.rows.length > shown.length) body.lastElementChild.remove();
  while (body.rows.length < shown.length) addRow(body);
  shown.forEach((stream, number) => {
    const row = body.rows[number];
    row.dataset.state = stream.state;
    row.cells[0].title = stream.sid; // a long one is cut off
    COLUMNS.forEach(([, text], column) => write(row.cells[column], text(stream)));
  });
}

function addRow(body) {
  const row = make("tr", body);
  COLUMNS.forEach((_, column) => make(column ? "td" : "th", row));
  row.cells[0].scope = "row";
}

// -- the connection

let source, watchdog;

// An EventSource comes back by itself, but not after an answer that is an error, nor if nothing comes any more.
function connect() {
  source?.close();
  source = new EventSource("inspect/events");
  let isNew = true; // it brings no cursor, so everything that is kept comes again
  source.onerror = () => showConnection("waiting", "Reconnecting …");
  source.addEventListener("subscribed", ({ data }) => {
    if (isNew) forget(JSON.parse(data).floor);
    isNew = false;
  });
  source.addEventListener("reset", ({ data }) => forget(JSON.parse(data).floor));
  source.addEventListener("event", ({ data }) => {
    wait();
    showConnection("live", "Live");
    take(JSON.parse(data));
  });
  wait();
}

function wait() {
  clearTimeout(watchdog);
  watchdog = setTimeout(() => {
    showConnection("waiting", "Reconnecting …");
    connect();
  }, SILENCE);
}

// Each thing once: every new try would be read aloud otherwise.
function showConnection(state, text) {
  element("connection").dataset.state = element("main").dataset.state = state;
  write(element("connection"), text);
}

for (const figure of FIGURES) tellIn(element("figures"), figure);
for (const fact of FACTS) tellIn(element("facts"), fact);
for (const plot of PLOTS) draft(plot);
for (const [name] of COLUMNS) make("th", element("heads"), name).scope = "col";
addEventListener("resize", () => { frame ||= requestAnimationFrame(show); });
connect();
