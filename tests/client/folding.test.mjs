// Frames become snapshots: docs/live-protocol.md, "Folding".

import assert from "node:assert/strict";
import { test } from "node:test";
import { Page, texts } from "./fakes.mjs";

const SMILE = "\u{1f600}";
const FAMILY = "\u{1f468}\u200d\u{1f469}\u200d\u{1f467}"; // five code points, eight units

function talking(t, text) {
  const page = new Page(t);
  page.connect();
  return { page, ...page.talk("a", text) };
}

test("a stream that is opened is subscribed to without a cursor, and is the same object for the same sid", (t) => {
  const page = new Page(t);
  const streams = page.connect();
  const stream = streams.open("a");
  assert.equal(streams.open("a"), stream);
  assert.notEqual(streams.open("b"), stream);
  assert.deepEqual(page.socket.named("subscribe"), [
    { t: "subscribe", sid: "a", mode: "full" },
    { t: "subscribe", sid: "b", mode: "full" },
  ]);
});

test("a snapshot has the shape of the contract, before the first frame too", (t) => {
  const page = new Page(t);
  page.connect({ hello: null });
  const { stream } = page.open("a", { isGreeted: false });
  const nothing = { sid: "a", status: "connecting", error: null, messages: [], events: [], unread: 0 };
  assert.deepEqual(stream.snapshot(), nothing);
  page.socket.open();
  assert.deepEqual(stream.snapshot(), nothing);
});

test("a message, its parts and the app's events are as the server tells them", (t) => {
  const page = new Page(t);
  page.connect();
  const { stream, script } = page.open();
  const usage = { tokens: 3 };
  page.socket.say(
    script.start("m1", "assistant", { model: "x" }),
    script.part("m1", "thinking", { hidden: true }),
    script.delta(2, "hm"),
    script.event("tool.result", { ok: true }),
    script.part("m1"),
    script.delta(4, "yes"),
    script.partEnd(2),
    script.partEnd(4),
    script.end("m1", { status: "error", error: "it broke", usage }),
    script.start("m2", "user"),
  );
  const { messages, events } = stream.snapshot();
  const ids = messages[0].parts.map(({ id }) => id);
  assert.notEqual(ids[0], ids[1]);
  assert.deepEqual(messages, [
    {
      mid: "m1",
      role: "assistant",
      status: "error",
      error: "it broke",
      meta: { model: "x" },
      usage,
      parts: [
        { id: ids[0], kind: "thinking", meta: { hidden: true }, text: "hm", open: false },
        { id: ids[1], kind: "text", meta: {}, text: "yes", open: false },
      ],
    },
    { mid: "m2", role: "user", status: "open", error: null, meta: {}, usage: null, parts: [] },
  ]);
  assert.deepEqual(events, [{ seq: 3, k: "tool.result", d: { ok: true } }]);
});

for (const status of ["complete", "cancelled", "aborted", "error"]) {
  test(`a message that ends as ${status} says so`, (t) => {
    const { page, stream, script } = talking(t, "x");
    page.socket.say(script.partEnd(2), script.end("m1", { status }));
    assert.equal(stream.snapshot().messages[0].status, status);
  });
}

test("a delta at the end of the text is appended", (t) => {
  const { page, stream, script } = talking(t, "ab");
  page.socket.say(script.delta(2, "cd"), script.delta(2, "ef"));
  assert.deepEqual(texts(stream), [["abcdef"]]);
});

test("a delta that lies within the text is dropped", (t) => {
  const { page, stream, script } = talking(t, "abcd");
  page.socket.say(script.delta(2, "bc", 1), script.delta(2, "abcd", 0), script.delta(2, "", 4));
  assert.deepEqual(texts(stream), [["abcd"]]);
});

test("of a delta that overlaps only what is new is appended, counted in code points", (t) => {
  const { page, stream, script } = talking(t, `a${SMILE}b`);
  page.socket.say(script.delta(2, `${SMILE}b${FAMILY}`, 1));
  assert.deepEqual(texts(stream), [[`a${SMILE}b${FAMILY}`]]);
  page.socket.say(script.delta(2, `b${FAMILY}c`, 2));
  assert.deepEqual(texts(stream), [[`a${SMILE}b${FAMILY}c`]]);
  page.socket.say(script.delta(2, "d", 9));
  assert.deepEqual(texts(stream), [[`a${SMILE}b${FAMILY}cd`]]);
  assert.equal(page.socket.named("subscribe").length, 1);
});

test("an overlap is cut from plain text behind an emoji, and from emoji behind plain text", (t) => {
  const { page, stream, script } = talking(t, `${SMILE}ab`);
  page.socket.say(script.delta(2, "abc", 1), script.delta(2, `c${SMILE}`, 3));
  assert.deepEqual(texts(stream), [[`${SMILE}abc${SMILE}`]]);
});

test("a delta beyond the text is not applied, and the stream is subscribed to again with its cursor", (t) => {
  const { page, stream, script } = talking(t, `a${SMILE}`);
  page.socket.say(script.delta(2, "x", 3));
  assert.deepEqual(texts(stream), [[`a${SMILE}`]]);
  assert.deepEqual(page.socket.sent.at(-1), { t: "subscribe", sid: "a", cursor: "epoch123.2.2~2", mode: "full" });
});

test("what comes between a loss and the answer to the new subscription is of the old one, and is passed over", (t) => {
  const { page, stream, script } = talking(t, "ab");
  page.socket.say(script.delta(2, "x", 3), script.delta(2, "cd", 2), script.event());
  assert.deepEqual(texts(stream), [["ab"]]);
  assert.deepEqual(stream.snapshot().events, []);
  script.seq = 2;
  page.socket.say(script.subscribed(), script.delta(2, "cd", 2));
  assert.deepEqual(texts(stream), [["abcd"]]);
  assert.equal(page.socket.named("subscribe").length, 2);
});

test("a server whose frames never fit is asked again once a second, not at once", (t) => {
  const { page, script } = talking(t, "ab");
  page.socket.say(script.delta(2, "x", 3));
  for (let tries = 0; tries < 3; tries++) {
    const before = page.socket.named("subscribe").length;
    page.socket.say(script.subscribed(), script.delta(2, "x", 3));
    assert.equal(page.socket.named("subscribe").length, before);
    page.tick(999);
    assert.equal(page.socket.named("subscribe").length, before);
    page.tick(1);
    assert.equal(page.socket.named("subscribe").length, before + 1);
  }
});

test("text of a part that nobody named, or that has ended, is passed over", (t) => {
  const { page, stream, script } = talking(t, "ab");
  page.socket.say(script.delta(9, "x", 0), script.partEnd(2), script.delta(2, "cd", 2));
  assert.deepEqual(texts(stream), [["ab"]]);
});

test("an event that came already is dropped", (t) => {
  const { page, stream, script } = talking(t, "ab");
  const event = script.event("note", 1);
  page.socket.say(event, event, { ...event, seq: 1 });
  assert.equal(stream.snapshot().events.length, 1);
  page.socket.say({ ...event, seq: 2, k: "message.end", d: { mid: "m1", status: "complete" } });
  assert.equal(stream.snapshot().messages[0].status, "open");
  assert.equal(page.socket.named("subscribe").length, 1);
});

test("an event behind a hole is not applied, and the stream is subscribed to again with its cursor", (t) => {
  const { page, stream, script } = talking(t, "ab");
  script.event();
  page.socket.say(script.event());
  assert.deepEqual(stream.snapshot().events, []);
  assert.deepEqual(page.socket.sent.at(-1), { t: "subscribe", sid: "a", cursor: "epoch123.2.2~2", mode: "full" });
});

test("the end of a part with its text replaces what was streamed, under another id", (t) => {
  const { page, stream, script } = talking(t, "draft");
  const { id } = stream.snapshot().messages[0].parts[0];
  page.socket.say(script.partEnd(2, "m1", { s: `f${SMILE}`, len: 2 }));
  const part = stream.snapshot().messages[0].parts[0];
  assert.deepEqual({ ...part, id: 0 }, { id: 0, kind: "text", meta: {}, text: `f${SMILE}`, open: false });
  assert.notEqual(part.id, id);
});

test("the end of a part with the very text that was streamed keeps its id", (t) => {
  const { page, stream, script } = talking(t, "same");
  const { id } = stream.snapshot().messages[0].parts[0];
  page.socket.say(script.partEnd(2, "m1", { s: "same", len: 4 }));
  assert.equal(stream.snapshot().messages[0].parts[0].id, id);
});

test("a part replaced by nothing is empty", (t) => {
  const { page, stream, script } = talking(t, "draft");
  page.socket.say(script.partEnd(2, "m1", { s: "", len: 0 }));
  assert.deepEqual(texts(stream), [[""]]);
});

test("a part that ends at another length is asked for anew, without its offset and with those of the others", (t) => {
  const { page, stream, script } = talking(t, "abc");
  page.socket.say(script.part("m1", "thinking"), script.delta(3, `${SMILE}${SMILE}`));
  const { id } = stream.snapshot().messages[0].parts[0];
  const end = script.partEnd(2, "m1", { len: 4 });
  page.socket.say(end);
  assert.equal(page.socket.sent.at(-1).cursor, "epoch123.3.3~2");
  page.socket.say(script.subscribed(), script.delta(2, "abcd", 0), end);
  const parts = stream.snapshot().messages[0].parts;
  assert.deepEqual(parts.map(({ text, open }) => [text, open]), [["abcd", false], [`${SMILE}${SMILE}`, true]]);
  assert.notEqual(parts[0].id, id);
});

test("a part whose end never fits does not make a storm of subscriptions", (t) => {
  const { page, script } = talking(t, "abc");
  const end = script.partEnd(2, "m1", { len: 4 });
  page.socket.say(end);
  for (let tries = 0; tries < 20; tries++) page.socket.say(script.subscribed(), script.delta(2, "abc", 0), end);
  assert.ok(page.socket.named("subscribe").length <= 4, `${page.socket.named("subscribe").length} subscriptions`);
});

test("a server that always answers reset and never fits does not make a storm of subscriptions", (t) => {
  const { page, script } = talking(t, "abc");
  const gap = { ...script.event(), seq: 50 };
  page.socket.say(gap);
  for (let tries = 0; tries < 20; tries++) page.socket.say(script.reset(), gap);
  assert.ok(page.socket.named("subscribe").length <= 4, `${page.socket.named("subscribe").length} subscriptions`);
});

test("text that is sent anew counts once in the summary", (t) => {
  const { page, script } = talking(t, "abc");
  const end = script.partEnd(2, "m1", { len: 4 });
  page.socket.say(end, script.subscribed(), script.delta(2, "abcd", 0), end);
  assert.equal(page.streams.activity.snapshot().get("a").chars, 4);
});

test("subscribed without a cursor begins at floor, with the messages and parts that are open there", (t) => {
  const page = new Page(t);
  page.connect();
  const parts = [{ p: 5, part: 1, kind: "thinking", meta: { x: 1 } }];
  const open = [{ mid: "m1", role: "assistant", meta: { y: 2 }, parts }];
  const { stream, script } = page.open("a", { floor: 7, head: 9, open });
  script.seq = 7;
  page.socket.say(script.delta(5, "ab", 0), script.event("note", 8));
  const { messages, events } = stream.snapshot();
  const { id } = messages[0].parts[0];
  assert.deepEqual(messages[0], {
    mid: "m1",
    role: "assistant",
    status: "open",
    error: null,
    meta: { y: 2 },
    usage: null,
    parts: [{ id, kind: "thinking", meta: { x: 1 }, text: "ab", open: true }],
  });
  assert.equal(events[0].seq, 8);
  assert.equal(page.socket.named("subscribe").length, 1);
});

test("subscribed with a cursor keeps everything; what it calls open is known", (t) => {
  const { page, stream, script } = talking(t, "ab");
  page.socket.drop();
  page.tick(10_000);
  page.socket.open();
  const before = stream.snapshot();
  const open = [{ mid: "m1", role: "assistant", meta: {}, parts: [{ p: 2, part: 0, kind: "text", meta: {} }] }];
  page.socket.say(script.subscribed({ open, head: 3 }), script.delta(2, "cd"));
  assert.deepEqual(texts(stream), [["abcd"]]);
  assert.equal(stream.snapshot().messages[0].parts[0].id, before.messages[0].parts[0].id);
});

for (const reason of ["invalid", "epoch", "ahead", "trimmed"]) {
  test(`reset ${reason} forgets everything, begins at floor and learns what is open`, (t) => {
    const { page, stream, script } = talking(t, "ab");
    page.socket.say(script.event("note", 1));
    const { id } = stream.snapshot().messages[0].parts[0];
    script.epoch = "anotherone";
    const open = [{ mid: "m1", role: "assistant", meta: {}, parts: [{ p: 2, part: 0, kind: "text", meta: {} }] }];
    page.socket.say(script.reset({ reason, floor: 4, head: 6, open }));
    assert.deepEqual(texts(stream), [[""]]);
    assert.deepEqual(stream.snapshot().events, []);
    page.socket.say(script.delta(2, "xy", 0), script.event("note", 5));
    assert.deepEqual(texts(stream), [["xy"]]);
    assert.notEqual(stream.snapshot().messages[0].parts[0].id, id);
    assert.equal(stream.snapshot().events[0].seq, 5);
    page.socket.drop();
    page.tick(10_000);
    page.socket.open();
    assert.equal(page.socket.sent[0].cursor, "anotherone.5.2~2");
  });
}

test("unknown frames, and unknown members of known ones, are passed over in silence", (t) => {
  const { page, stream, script } = talking(t, "ab");
  page.socket.say(
    { t: "later", sid: "a", seq: 99 },
    { t: "cumulative", sid: "a", p: 2, s: "other" },
    { sid: "a" },
    { t: "done", sid: "a", seq: 2 },
    { t: "ping" },
    { ...script.delta(2, "c"), lang: "en" },
    { ...script.event("note", 1), who: {} },
  );
  assert.deepEqual(texts(stream), [["abc"]]);
  assert.deepEqual(stream.snapshot().events, [{ seq: 3, k: "note", d: 1 }]);
});

test("frames of a stream that the page has not opened, or has closed, are passed over in silence", (t) => {
  const { page, stream, script } = talking(t, "ab");
  for (const frame of [script.event(), script.delta(2, "c"), script.subscribed(), script.reset()]) {
    page.socket.say({ ...frame, sid: "unknown" });
  }
  stream.close();
  page.socket.say(script.delta(2, "cd", 2), script.subscribed(), script.reset());
  assert.deepEqual(texts(stream), [["ab"]]);
});

test("streams are folded apart from each other, in one message too", (t) => {
  const page = new Page(t);
  page.connect();
  const one = page.talk("a");
  const other = page.talk("b");
  page.socket.say(one.script.delta(2, "1"), other.script.delta(2, "2"), one.script.delta(2, "3"));
  assert.deepEqual([texts(one.stream), texts(other.stream)], [[["13"]], [["2"]]]);
});

test("parts that take turns keep their own text", (t) => {
  const { page, stream, script } = talking(t);
  page.socket.say(script.part("m1", "thinking"));
  for (let turn = 0; turn < 4; turn++) page.socket.say(script.delta(2, `${turn}`), script.delta(3, `-${turn}`));
  assert.deepEqual(texts(stream), [["0123", "-0-1-2-3"]]);
});

test("an event that makes no sense is reported once and passed over, and the stream goes on", (t) => {
  const { page, stream, script } = talking(t, "ab");
  page.socket.say(script.part("nobody"), script.end("nobody"), script.event("note", 1), script.delta(2, "c"));
  page.expect(1);
  assert.deepEqual(texts(stream), [["abc"]]);
  assert.equal(stream.snapshot().events.length, 1);
  assert.equal(page.socket.named("subscribe").length, 1);
});

// -- cursors

function cursorAfterLoss(page) {
  page.socket.drop();
  page.tick(10_000);
  page.socket.open();
  return page.socket.sent[0].cursor;
}

test("a cursor has the epoch, the last event, and in code points the offset of each part that is open", (t) => {
  const { page, script } = talking(t, SMILE);
  page.socket.say(script.part("m1"), script.delta(3, "abc"), script.part("m1"), script.delta(4, "x"), script.part("m1"));
  page.socket.say(script.partEnd(4));
  assert.equal(cursorAfterLoss(page), "epoch123.6.2~1.3~3");
});

test("a cursor has at most 2,048 characters; offsets that do not fit are left out", (t) => {
  const { page, stream, script } = talking(t, "a");
  for (let n = 0; n < 500; n++) {
    const frame = script.part("m1");
    page.socket.say(frame, script.delta(frame.seq, "abc"));
  }
  const cursor = cursorAfterLoss(page);
  assert.ok(cursor.length <= 2048, `${cursor.length}`);
  assert.ok(cursor.length > 2040, `${cursor.length}`);
  assert.match(cursor, /^epoch123\.502(\.\d+~\d+)+$/);
  page.socket.say(script.subscribed(), script.delta(502, "abcd", 0));
  assert.equal(texts(stream)[0].at(-1), "abcd");
});

for (const size of [2_048, 2_049]) {
  test(`a cursor of ${size} characters is ${size > 2_048 ? "cut" : "sent whole"}`, (t) => {
    const page = new Page(t);
    page.connect();
    const { script } = page.open();
    page.socket.say(script.start("m1"));
    const frames = Array.from({ length: 400 }, () => script.part("m1"));
    page.socket.say(...frames);
    const length = () => `epoch123.${script.seq}`.length + [...script.lengths].reduce((sum, [p, n]) => sum + (n && `.${p}~${n}`.length), 0);
    for (const { seq } of frames) if (length() < 2_000) page.socket.say(script.delta(seq, "a"));
    const last = frames.find(({ seq }) => !script.lengths.get(seq)).seq;
    for (const { seq } of frames) {
      const left = size - length() - `.${last}~1`.length;
      if (script.lengths.get(seq) && left > 0) page.socket.say(script.delta(seq, "a".repeat(10 ** Math.min(left, 3))));
    }
    page.socket.say(script.delta(last, "a"));
    assert.equal(length(), size);
    const cursor = cursorAfterLoss(page);
    if (size === 2_048) assert.equal(cursor.length, size);
    else assert.ok(cursor.length < 2_048 && cursor.length > 2_030, `${cursor.length}`);
  });
}
