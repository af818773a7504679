// When the page is told, what of a snapshot is another object, and what it costs.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Page, Script, counting, texts } from "./fakes.mjs";

function talking(t, text = "ab", how) {
  const page = new Page(t, how);
  page.connect();
  return { page, ...page.talk("a", text) };
}

// -- at the page's pace

test("text is told once per animation frame, however many tokens came", (t) => {
  const { page, script, told } = talking(t);
  for (let n = 0; n < 50; n++) page.socket.say(script.delta(2, "x"), script.delta(2, "y"));
  assert.equal(told.count, 0);
  assert.equal(page.frame(), 1);
  assert.equal(told.count, 1);
  assert.equal(page.frame(), 0);
  page.socket.say(script.delta(2, "z"));
  page.frame();
  assert.equal(told.count, 2);
  assert.equal(told.last.messages[0].parts[0].text, `ab${"xy".repeat(50)}z`);
});

test("the start and the end of a part are told with the text", (t) => {
  const { page, script, told } = talking(t);
  page.socket.say(script.partEnd(2), script.part("m1"));
  assert.equal(told.count, 0);
  page.frame();
  assert.equal(told.count, 1);
});

for (const [name, frames] of [
  ["the start of a message", (script) => [script.start("m2")]],
  ["the end of a message", (script) => [script.partEnd(2), script.end()]],
  ["the abort of a message", (script) => [script.partEnd(2), script.end("m1", { status: "aborted" })]],
  ["an event of the app", (script) => [script.event()]],
  ["a reset", (script) => [script.reset()]],
]) {
  test(`${name} is told at once, and takes along the text that waited for its frame`, (t) => {
    const { page, script, told } = talking(t);
    page.socket.say(script.delta(2, "cd"));
    assert.equal(told.count, 0);
    page.socket.say(...frames(script));
    assert.equal(told.count, 1);
    page.frame();
    assert.equal(told.count, 1);
  });
}

test("a change of status is told at once, and takes along the text that waited for its frame", (t) => {
  const { page, script, told } = talking(t);
  page.socket.say(script.delta(2, "cd"));
  page.socket.drop();
  assert.deepEqual([told.count, told.last.status, told.last.messages[0].parts[0].text], [1, "waiting", "abcd"]);
  page.frame();
  assert.equal(told.count, 1);
});

test("text that comes after a notification in the same frame is told in that frame", (t) => {
  const { page, script, told } = talking(t);
  page.socket.say(script.delta(2, "c"), script.event());
  page.socket.say(script.delta(2, "d"));
  assert.equal(told.count, 1);
  page.frame();
  assert.equal(told.count, 2);
});

test("events and text that come in one message are told once", (t) => {
  const { page, script, told } = talking(t);
  page.socket.say(script.event(), script.delta(2, "c"), script.event(), script.partEnd(2), script.end(), script.start("m2"));
  assert.equal(told.count, 1);
  page.frame();
  assert.equal(told.count, 1);
});

test("frames that change nothing are not told", (t) => {
  const { page, stream, script, told } = talking(t);
  const before = stream.snapshot();
  page.socket.say(script.delta(2, "ab", 0), { ...script.event(), seq: 1 }, { t: "later" }, { t: "pong" });
  page.frame();
  assert.deepEqual([told.count, stream.snapshot() === before], [0, true]);
});

test("one stream's news are not told to the listeners of another", (t) => {
  const { page, told } = talking(t);
  const other = page.talk("b");
  page.socket.say(other.script.delta(2, "x"), other.script.event());
  page.socket.say(other.script.delta(2, "y"));
  page.frame();
  assert.deepEqual([told.count, other.told.count], [0, 2]);
});

test("a hidden page is told of text each 250 ms, and of events at once", (t) => {
  const { page, script, told } = talking(t);
  page.hide();
  page.clock.asked.frames = 0;
  page.socket.say(script.delta(2, "c"));
  page.tick(200);
  page.socket.say(script.delta(2, "d"));
  page.tick(49);
  assert.equal(told.count, 0);
  page.tick(1);
  assert.equal(told.count, 1);
  page.socket.say(script.event());
  assert.equal(told.count, 2);
  page.tick(1_000);
  assert.deepEqual([told.count, page.clock.asked.frames], [2, 0]);
});

test("text that waited for a frame when the page was hidden is told by the timer, and the other way round", (t) => {
  const { page, script, told } = talking(t);
  page.socket.say(script.delta(2, "c"));
  page.hide();
  page.tick(250);
  assert.deepEqual([told.count, page.frame()], [1, 0]);
  page.socket.say(script.delta(2, "d"));
  page.hide(false);
  page.frame();
  assert.equal(told.count, 2);
  page.tick(250);
  assert.equal(told.count, 2);
});

test("without requestAnimationFrame text is told each 250 ms", (t) => {
  const { page, script, told } = talking(t, "", { hasFrames: false });
  page.tick(250);
  told.count = 0;
  page.socket.say(script.delta(2, "c"));
  page.tick(249);
  assert.equal(told.count, 0);
  page.tick(1);
  assert.equal(told.count, 1);
});

test("a listener that was taken away is not called, not even for what waited", (t) => {
  const { page, script, told } = talking(t);
  page.socket.say(script.delta(2, "c"));
  told.stop();
  told.stop();
  page.frame();
  page.socket.say(script.event());
  assert.equal(told.count, 0);
});

test("the same function may listen twice, and each stop ends one", (t) => {
  const { page, stream, script } = talking(t);
  let count = 0;
  const listener = () => count++;
  const stops = [stream.subscribe(listener), stream.subscribe(listener)];
  page.socket.say(script.event());
  stops[0]();
  page.socket.say(script.event());
  assert.equal(count, 3);
});

test("a listener that throws is reported once, however often it does, and the others are told", (t) => {
  const { page, stream, script, told } = talking(t);
  told.stop();
  const heard = [];
  stream.subscribe(() => { throw new Error("first"); }); // prettier-ignore
  stream.subscribe(() => heard.push(stream.snapshot().events.length));
  page.streams.subscribe(() => { throw new Error("of status"); }); // prettier-ignore
  page.streams.activity.subscribe(() => { throw new Error("of activity"); }); // prettier-ignore
  for (let n = 0; n < 3; n++) {
    page.socket.say(script.event());
    page.tick(400);
  }
  page.socket.drop();
  const errors = page.expect(3).map((what) => what.find((each) => each instanceof Error).message);
  assert.deepEqual(errors.sort(), ["first", "of activity", "of status"]);
  assert.deepEqual(heard, [1, 2, 3, 3]);
  assert.equal(page.streams.status, "waiting");
});

test("a listener that ends its subscription and begins another is called once for one change", (t) => {
  const { page, stream, script } = talking(t);
  let count = 0;
  let stop = null;
  const listener = () => {
    if (++count > 10) return;
    stop();
    stop = stream.subscribe(listener);
  };
  stop = stream.subscribe(listener);
  page.socket.say(script.event());
  assert.equal(count, 1);
});

test("a listener that is taken away by one before it is not called", (t) => {
  const { page, stream, script } = talking(t);
  let count = 0;
  let stop = null;
  stream.subscribe(() => stop());
  stop = stream.subscribe(() => count++);
  page.socket.say(script.event());
  assert.equal(count, 0);
});

test("a listener may open, focus, close and subscribe", (t) => {
  const { page, stream, script } = talking(t);
  const stop = stream.subscribe(() => {
    stop();
    page.streams.open("b").subscribe(() => {});
    page.streams.focus(["b"]);
    stream.close();
  });
  page.socket.say(script.event(), script.event());
  assert.equal(stream.snapshot().status, "closed");
  assert.deepEqual(page.socket.sent.slice(1).map(({ t: name }) => name), ["subscribe", "focus", "unsubscribe"]);
});

// -- what has not changed is the same object

test("a snapshot is the same object until something changes", (t) => {
  const { page, stream, script } = talking(t);
  const before = stream.snapshot();
  assert.equal(stream.snapshot(), before);
  page.socket.say(script.delta(2, "c"));
  const after = stream.snapshot();
  assert.notEqual(after, before);
  assert.equal(stream.snapshot(), after);
  assert.equal(before.messages[0].parts[0].text, "ab");
});

test("text makes another part, message, list and snapshot, and leaves all that stands beside them", (t) => {
  const { page, stream, script } = talking(t);
  page.socket.say(script.part("m1", "thinking"), script.delta(3, "hm"), script.start("m2"), script.part("m2"), script.event());
  const before = stream.snapshot();
  page.socket.say(script.delta(3, "m"));
  const after = stream.snapshot();
  const same = [
    after === before,
    after.messages === before.messages,
    after.messages[0] === before.messages[0],
    after.messages[0].parts === before.messages[0].parts,
    after.messages[0].parts[1] === before.messages[0].parts[1],
    after.messages[0].parts[0] === before.messages[0].parts[0],
    after.messages[1] === before.messages[1],
    after.events === before.events,
  ];
  assert.deepEqual(same, [false, false, false, false, false, true, true, true]);
});

test("an event leaves the messages, a change of status leaves both", (t) => {
  const { page, stream, script } = talking(t);
  const first = stream.snapshot();
  page.socket.say(script.event());
  const second = stream.snapshot();
  assert.deepEqual([second.messages === first.messages, second.events === first.events], [true, false]);
  page.socket.say(script.event());
  assert.equal(stream.snapshot().events[0], second.events[0]);
  const third = stream.snapshot();
  page.socket.drop();
  const last = stream.snapshot();
  assert.deepEqual([last === third, last.messages === third.messages, last.events === third.events], [false, true, true]);
});

test("the end of a message leaves its parts and the other messages", (t) => {
  const { page, stream, script } = talking(t);
  page.socket.say(script.start("m2"), script.partEnd(2));
  const before = stream.snapshot().messages;
  page.socket.say(script.end());
  const after = stream.snapshot().messages;
  assert.notEqual(after[0], before[0]);
  assert.equal(after[0].parts[0], before[0].parts[0]);
  assert.equal(after[1], before[1]);
});

test("one stream's text leaves the snapshots of the others", (t) => {
  const { page, script } = talking(t);
  const other = page.talk("b", "x");
  const before = other.stream.snapshot();
  page.socket.say(script.delta(2, "c"), script.event());
  assert.equal(other.stream.snapshot(), before);
});

test("everything in a snapshot and in a summary is frozen, whatever stage it is in", (t) => {
  const { page, stream, script } = talking(t);
  const check = (value, path) => {
    if (typeof value !== "object" || value === null) return;
    assert.ok(Object.isFrozen(value), path);
    for (const [name, each] of Object.entries(value)) {
      if (!["meta", "usage", "d"].includes(name)) check(each, `${path}.${name}`);
    }
  };
  check(stream.snapshot(), "live");
  page.socket.say(script.event("note", 1), script.partEnd(2, "m1", { s: "x", len: 1 }));
  check(stream.snapshot(), "replaced");
  page.socket.say(script.end("m1", { usage: {} }), script.start("m2"), script.part("m2"));
  check(stream.snapshot(), "ended");
  page.socket.say(script.reset({ open: [{ mid: "m", role: "x", meta: {}, parts: [] }] }));
  check(stream.snapshot(), "reset");
  page.streams.focus([]);
  page.socket.say({ t: "notify", sid: "a", seq: 9, k: "x", d: 1 });
  for (const [sid, summary] of page.streams.activity.snapshot()) check(summary, sid);
  check(page.streams.open("b").snapshot(), "new");
});

test("under one id a text only grows", (t) => {
  const { page, stream, script } = talking(t);
  const seen = new Map();
  const look = () => {
    for (const { parts } of stream.snapshot().messages) {
      for (const { id, text } of parts) {
        assert.ok(text.startsWith(seen.get(id) ?? ""), `${id}: ${seen.get(id)} became ${text}`);
        seen.set(id, text);
      }
    }
  };
  const end = { ...script.partEnd(2), d: { mid: "m1", p: 2, len: 9 } };
  const open = [{ mid: "m1", role: "a", meta: {}, parts: [{ p: 2, part: 0, kind: "text", meta: {} }] }];
  for (const frame of [
    script.delta(2, "c"), end, script.subscribed(), script.delta(2, "ab", 0), { ...end, d: { ...end.d, s: "zz", len: 2 } },
    script.reset({ open, floor: 2 }), script.delta(2, "q", 0), script.partEnd(2, "m1", { s: "", len: 0 }),
  ]) { // prettier-ignore
    page.socket.say(frame);
    look();
  }
  assert.ok(seen.size >= 4);
});

// -- nothing for nobody

test("when nobody listens no frame is asked for, no timer is set, and nothing is rebuilt", (t) => {
  const { page, stream, script, told } = talking(t);
  told.stop();
  stream.snapshot();
  page.clock.asked = { frames: 0, timers: [] };
  const frames = Array.from({ length: 100 }, () => script.delta(2, "x"));
  const counted = counting(() => page.socket.say(...frames, script.partEnd(2), script.end(), script.start("m2")));
  assert.deepEqual(page.clock.asked, { frames: 0, timers: [] });
  assert.equal(counted.freeze, 0);
  assert.equal(texts(stream)[0][0], `ab${"x".repeat(100)}`);
});

test("text alone asks for no frame either when nobody listens", (t) => {
  const { page, script, told } = talking(t);
  told.stop();
  page.clock.asked = { frames: 0, timers: [] };
  page.socket.say(script.delta(2, "x"));
  assert.deepEqual(page.clock.asked, { frames: 0, timers: [] });
});

test("a snapshot that nobody asks for is not built, even if somebody listens", (t) => {
  const { page, stream, script, told } = talking(t);
  told.stop();
  let count = 0;
  stream.subscribe(() => count++);
  const counted = counting(() => {
    page.socket.say(script.delta(2, "x"));
    page.frame();
  });
  assert.deepEqual([count, counted.freeze], [1, 0]);
});

test("what came while nobody listened is in the snapshot, and is not told again", (t) => {
  const { page, stream, script, told } = talking(t);
  told.stop();
  page.socket.say(script.delta(2, "c"), script.event());
  let count = 0;
  stream.subscribe(() => count++);
  assert.deepEqual([texts(stream), page.frame(), count], [[["abc"]], 0, 0]);
  page.socket.say(script.delta(2, "d"));
  page.frame();
  assert.equal(count, 1);
});

// -- the work for a token

// One token that comes, is told and read: how many objects were made, and how often each thing was done.
function work({ page, stream, script }, p = 2) {
  page.socket.say(script.delta(p, "x"));
  page.frame();
  const frame = script.delta(p, "y");
  const text = JSON.stringify([frame]);
  const folded = counting(() => page.socket.text(text));
  const read = counting(() => {
    page.frame();
    stream.snapshot();
  });
  return { folded, read };
}

function bare(t) {
  return work(talking(t));
}

test("the work for a token does not grow with the answer's length", (t) => {
  const one = bare(t);
  const long = talking(t, "");
  for (let n = 0; n < 100; n++) {
    long.page.socket.say(long.script.delta(2, "long ".repeat(1_000)));
    if (n % 2) long.page.frame();
  }
  long.page.frame();
  assert.deepEqual(work(long), one);
});

test("the work for a token does not grow with the number of streams", (t) => {
  const one = bare(t);
  const many = talking(t);
  for (let n = 0; n < 100; n++) many.page.talk(`s${n}`, "text");
  many.page.frame();
  assert.deepEqual(work(many), one);
});

test("the work for a token does not grow with what was said before; only the list of messages is copied", (t) => {
  const one = bare(t);
  const old = talking(t);
  const { script } = old;
  for (let n = 0; n < 200; n++) {
    const mid = `old${n}`;
    const frames = [script.start(mid), script.part(mid)];
    old.page.socket.say(...frames, script.delta(script.seq, "text"), script.partEnd(script.seq, mid), script.end(mid), script.event());
  }
  old.page.frame();
  const found = work(old);
  assert.deepEqual(found.folded, one.folded);
  assert.deepEqual({ ...found.read, steps: 0 }, { ...one.read, steps: 0 });
  assert.ok(found.read.steps - one.read.steps <= 200, `${found.read.steps - one.read.steps}`);
});

test("the work for a token does not grow with the other open messages", (t) => {
  const one = bare(t);
  const wide = talking(t);
  for (let n = 0; n < 50; n++) wide.page.socket.say(wide.script.start(`m${n + 2}`), wide.script.part(`m${n + 2}`));
  wide.page.frame();
  const found = work(wide);
  assert.deepEqual(found.folded, one.folded);
  assert.equal(found.read.freeze, one.read.freeze);
});

test("a part's runs are joined once per snapshot, not once per token", (t) => {
  const { page, stream, script } = talking(t);
  const frames = Array.from({ length: 1_000 }, () => script.delta(2, "x"));
  const text = JSON.stringify(frames);
  const counted = counting(() => {
    page.socket.text(text);
    page.frame();
    stream.snapshot();
  });
  assert.ok(counted.join <= 2, `${counted.join}`);
  assert.ok(counted.freeze <= 6, `${counted.freeze}`);
});

test("a page with sixteen streams in the background does nothing for them when one token comes", (t) => {
  const { page, script, told } = talking(t);
  const others = Array.from({ length: 16 }, (_, n) => page.talk(`s${n}`, "text"));
  page.streams.focus(["a"]);
  for (const other of others) other.told.count = 0;
  told.count = 0;
  page.socket.say(script.delta(2, "x"));
  page.frame();
  assert.equal(told.count, 1);
  assert.ok(others.every((other) => other.told.count === 0));
});

// -- much at once

test("more than a megabyte at once is folded in slices of 8 ms, so that input is handled in between", (t) => {
  const { page, stream, script, told } = talking(t, "");
  const frames = Array.from({ length: 1_100 }, () => script.delta(2, "x".repeat(1_000)));
  page.clock.slow = 3; // for each look at the clock: three take longer than a slice has
  page.socket.text(JSON.stringify(frames));
  const lengths = [];
  for (let n = 0; n < 20; n++) {
    lengths.push(texts(stream)[0][0].length / 1_000);
    if (n === 1) page.socket.say(script.delta(2, "y".repeat(1_000)));
    page.frame();
    page.clock.turn();
  }
  const sizes = lengths.map((length, place) => length - (lengths[place - 1] ?? 0)).filter(Boolean);
  assert.equal(lengths.at(-1), 1_101);
  assert.ok(texts(stream)[0][0].endsWith("xy".padEnd(1_001, "y")), "what came in between is last");
  assert.ok(sizes.length >= 10, `${sizes}`);
  assert.ok(sizes.every((size) => size <= 96), `${sizes}`);
  assert.ok(sizes.slice(0, -1).every((size) => size >= 64), `${sizes}`);
  assert.ok(told.count >= 10, "what is there is shown between slices");
});

test("what was folded is let go of, though frames come as fast as they are folded", (t) => {
  const { page, script } = talking(t, "");
  page.clock.slow = 3;
  const more = () => page.socket.say(...Array.from({ length: 96 }, () => script.delta(2, "x")));
  more();
  for (let n = 0; n < 50; n++) {
    more();
    page.clock.turn();
  }
  assert.ok(page.streams.queue.length < 500, `${page.streams.queue.length} frames wait`);
});

test("a hidden page, where the next task may be a second away, folds in one go", (t) => {
  const { page, stream, script } = talking(t, "");
  page.hide();
  page.clock.slow = 3;
  page.socket.say(...Array.from({ length: 1_000 }, () => script.delta(2, "x")));
  assert.equal(texts(stream)[0][0].length, 1_000);
});

test("what waits in slices when the connection is lost does no harm to what the new one brings", (t) => {
  const { page, stream, script } = talking(t, "");
  page.random = 0;
  const frames = Array.from({ length: 400 }, (_, n) => script.delta(2, `${n % 10}`));
  page.clock.slow = 3;
  page.socket.say(...frames);
  const { length } = texts(stream)[0][0];
  page.socket.drop();
  page.clock.slow = 0;
  const [[id, { work }]] = [...page.clock.timers].filter(([, timer]) => timer.at <= page.clock.now && !timer.every);
  page.clock.timers.delete(id); // the rest of the fold comes later than the new connection
  page.tick(10_000);
  page.socket.open();
  const [{ cursor }] = page.socket.sent;
  assert.equal(cursor, `epoch123.2.2~${length}`);
  work();
  const rest = [...frames.map(({ s }) => s)].slice(length).join("");
  page.socket.say(script.subscribed(), script.delta(2, rest, length));
  page.tick(100);
  assert.equal(texts(stream)[0][0], frames.map(({ s }) => s).join(""));
});

// -- activity

function background(t) {
  const page = new Page(t);
  page.connect();
  const { stream, script, told } = page.open("a", { head: 3 });
  page.streams.focus([]);
  page.tick(1_000);
  const heard = { count: 0 };
  const stop = page.streams.activity.subscribe(() => {
    heard.count++;
    heard.last = page.streams.activity.snapshot();
  });
  page.streams.activity.snapshot();
  told.count = 0;
  const say = (members) => page.socket.say({ t: "activity", items: [{ sid: "a", state: "streaming", head: 3, chars: 0, ...members }] });
  return { page, stream, script, told, heard, say, stop };
}

test("focus is told to the server with the streams that it knows, and decides on the mode of later ones", (t) => {
  const page = new Page(t);
  page.connect();
  for (const sid of ["a", "b"]) page.open(sid);
  page.streams.focus(["b", "c"]);
  assert.deepEqual(page.socket.sent.at(-1), { t: "focus", sids: ["b"] });
  page.streams.open("c");
  page.streams.open("d");
  assert.deepEqual(page.socket.sent.slice(-2).map(({ sid, mode }) => [sid, mode]), [["c", "full"], ["d", "activity"]]);
});

test("a stream that is out of focus has a summary, and its snapshot stays", (t) => {
  const { page, stream, script, told } = talking(t);
  const { messages } = stream.snapshot();
  page.streams.focus([]);
  page.socket.say({ t: "activity", items: [{ sid: "a", state: "streaming", head: 2, chars: 99 }] });
  const summary = { state: "streaming", head: 2, chars: 99, urgent: null };
  assert.deepEqual(page.streams.activity.snapshot().get("a"), summary);
  assert.equal(stream.snapshot().messages, messages);
  page.streams.focus(["a"]);
  page.socket.say(script.delta(2, "cd"));
  page.frame();
  assert.equal(told.last.messages[0].parts[0].text, "abcd");
  assert.equal(page.socket.named("subscribe").length, 1);
});

test("the summary of a stream in focus is made of what the page has", (t) => {
  const { page, script } = talking(t, "a\u{1f600}");
  const summary = () => page.streams.activity.snapshot().get("a");
  assert.deepEqual(summary(), { state: "streaming", head: 2, chars: 2, urgent: null });
  page.socket.say(script.partEnd(2), script.end());
  assert.deepEqual(summary(), { state: "idle", head: 4, chars: 2, urgent: null });
});

test("an activity frame of a stream that has come into focus since is passed over", (t) => {
  const { page, stream, say } = background(t);
  page.streams.focus(["a"]);
  const before = stream.snapshot();
  say({ head: 9, chars: 9 });
  assert.deepEqual([page.streams.activity.snapshot().get("a").head, stream.snapshot() === before], [3, true]);
});

test("the state of a stream that has come into focus is what the page sees, not what it was told before", (t) => {
  const { page, script, say } = background(t);
  say({ head: 4, chars: 1 });
  page.streams.focus(["a"]);
  page.socket.say(script.start("m1"), script.end("m1"));
  assert.equal(page.streams.activity.snapshot().get("a").state, "idle");
});

test("activity is told at once after a quiet spell, then at most three times a second", (t) => {
  const { page, heard, say } = background(t);
  say({ head: 4 });
  assert.equal(heard.count, 1);
  for (let ms = 0; ms < 3_000; ms += 10) {
    say({ chars: ms });
    page.tick(10);
  }
  assert.ok(heard.count <= 1 + 9, `${heard.count}`);
  assert.ok(heard.count >= 8, `${heard.count}`);
  page.tick(400);
  assert.equal(heard.last.get("a").chars, 2_990);
});

test("text does not make activity be told more often than that, and the last of it is told too", (t) => {
  const { page, script } = talking(t);
  page.tick(1_000);
  let count = 0;
  let last = null;
  page.streams.activity.subscribe(() => (count++, (last = page.streams.activity.snapshot())));
  for (let ms = 0; ms < 1_000; ms += 10) {
    page.socket.say(script.delta(2, "x"));
    page.frame();
    page.tick(10);
  }
  assert.ok(count >= 3 && count <= 4, `${count}`);
  page.tick(400);
  assert.equal(last.get("a").chars, 102);
});

test("when there is no news activity is not told", (t) => {
  const { page, heard, say } = background(t);
  say({ chars: 1 });
  page.tick(5_000);
  page.socket.say({ t: "pong" });
  assert.equal(heard.count, 1);
});

test("a listener that does not read the summaries is told once for one change", (t) => {
  const { page, say, stop } = background(t);
  stop();
  let count = 0;
  page.streams.activity.subscribe(() => count++);
  say({ chars: 1 });
  page.tick(5_000);
  assert.equal(count, 1);
});

test("listeners are told of a change that somebody else has read before", (t) => {
  const { page, heard, say } = background(t);
  say({ chars: 1 });
  say({ chars: 2 });
  assert.equal(page.streams.activity.snapshot().get("a").chars, 2); // as React does when a parent renders
  page.tick(1_000);
  assert.equal(heard.last.get("a").chars, 2);
});

test("a summary that has not changed is the same object, and the map too", (t) => {
  const { page, say } = background(t);
  page.open("b");
  const before = page.streams.activity.snapshot();
  assert.equal(page.streams.activity.snapshot(), before);
  say({ chars: 1 });
  const after = page.streams.activity.snapshot();
  assert.deepEqual([after === before, after.get("a") === before.get("a"), after.get("b") === before.get("b")], [false, false, true]);
});

test("nobody who listens to activity: no timer, no summary", (t) => {
  const { page, say, stop } = background(t);
  stop();
  page.clock.asked.timers = [];
  assert.equal(counting(() => say({ chars: 1 })).freeze, 0);
  assert.deepEqual(page.clock.asked.timers, []);
});

test("unread counts the events that a stream out of focus has and the page has not; in focus it is 0", (t) => {
  const { page, stream, script, told, say } = background(t);
  assert.equal(stream.snapshot().unread, 3);
  say({ head: 8 });
  page.frame();
  assert.deepEqual([told.count, told.last.unread], [1, 8]);
  page.streams.focus(["a"]);
  assert.equal(stream.snapshot().unread, 0);
  page.socket.say(...Array.from({ length: 8 }, () => script.event()));
  page.streams.focus([]);
  assert.equal(stream.snapshot().unread, 0);
  say({ head: 10 });
  assert.equal(stream.snapshot().unread, 2);
});

test("more text out of focus is no news of the stream itself", (t) => {
  const { page, told, say } = background(t);
  say({ head: 3, chars: 50 });
  page.frame();
  say({ head: 3, chars: 60 });
  page.frame();
  assert.equal(told.count, 0);
});

test("an urgent event is told at once, stands in the summary, and goes when the stream has come that far", (t) => {
  const { page, stream, script, told, heard } = background(t);
  page.socket.say({ t: "notify", sid: "a", seq: 5, k: "alarm", d: { x: 1 } });
  const urgent = { seq: 5, k: "alarm", d: { x: 1 } };
  assert.deepEqual([told.count, told.last.unread, heard.last.get("a").urgent], [1, 5, urgent]);
  assert.deepEqual(stream.snapshot().events, []);
  page.streams.focus(["a"]);
  page.socket.say(...Array.from({ length: 4 }, () => script.event()));
  assert.deepEqual(page.streams.activity.snapshot().get("a").urgent, urgent);
  page.socket.say(script.event("alarm", { x: 1 }));
  assert.equal(page.streams.activity.snapshot().get("a").urgent, null);
  assert.equal(stream.snapshot().events.at(-1).k, "alarm");
});

test("an urgent event that the page has already is passed over", (t) => {
  const { page, script, told } = talking(t);
  page.socket.say(script.event("alarm"));
  page.streams.focus([]);
  told.count = 0;
  page.socket.say({ t: "notify", sid: "a", seq: 3, k: "alarm", d: null });
  assert.deepEqual([told.count, page.streams.activity.snapshot().get("a").urgent], [0, null]);
});

test("a stream that is closed leaves the summaries", (t) => {
  const { page, stream, heard } = background(t);
  stream.close();
  page.tick(1_000);
  assert.equal(heard.last.has("a"), false);
  const script = new Script("a");
  page.socket.say({ t: "notify", ...script.event("alarm"), sid: "a" });
});

// -- bounds

test("a snapshot keeps the newest 2,000 messages and events, and goes on with them", (t) => {
  const { page, stream, script } = talking(t);
  const frames = [];
  for (let n = 2; n <= 2_001; n++) frames.push(script.start(`m${n}`), script.event("note", n));
  frames.push(script.event("note", 0));
  page.socket.say(...frames);
  for (let n = 0; n < 500; n++) page.tick(0);
  const { messages, events } = stream.snapshot();
  assert.deepEqual([messages.length, messages[0].mid, messages.at(-1).mid], [2_000, "m2", "m2001"]);
  assert.deepEqual([events.length, events[0].d, events.at(-1).d], [2_000, 3, 0]);
  page.socket.say(script.delta(2, "gone"), script.part("m2"), script.delta(script.seq, "first"), script.end("m1"));
  assert.equal(stream.snapshot().messages[0].parts[0].text, "first");
  assert.equal(stream.snapshot().messages[1], messages[1]);
});
