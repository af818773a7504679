// The connection: coming back by itself, and knowing when it is dead.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Page, texts } from "./fakes.mjs";

function connected(t, how) {
  const page = new Page(t, how);
  page.connect();
  return page;
}

// Milliseconds until the next socket is made.
function wait(page, most = 20_000) {
  const { length } = page.sockets;
  for (let ms = 0; ms <= most; ms++) {
    page.tick(ms ? 1 : 0);
    if (page.sockets.length > length) return ms;
  }
  throw new Error(`no new socket in ${most} ms`);
}

// A page that has been live with a text of "ab".
function talking(t, how) {
  const page = connected(t, how);
  return { page, ...page.talk("a", "ab") };
}

test("the socket's address is made from the page's, or is absolute", (t) => {
  const page = connected(t);
  assert.equal(page.socket.url, "wss://example.test/streams/ws");
  page.connect({ base: "http://other.test:81/x" });
  assert.equal(page.socket.url, "ws://other.test:81/x/ws");
  page.sockets[0].close();
});

test("a page without document, frames and window is served too, with sockets of its own", (t) => {
  const page = new Page(t, { hasDocument: false, hasFrames: false });
  delete globalThis.addEventListener;
  const { WebSocket } = globalThis;
  delete globalThis.WebSocket;
  page.connect({ WebSocket, base: "http://x.test/streams" });
  const { told, script } = page.talk("a");
  page.socket.say(script.delta(2, "x"));
  page.tick(250);
  assert.deepEqual(texts({ snapshot: () => told.last }), [["x"]]);
});

test("status goes from connecting to live to waiting to connecting to live to closed, and listeners hear it", (t) => {
  const page = new Page(t);
  const streams = page.connect({ hello: null });
  const heard = [streams.status];
  const stop = streams.subscribe(() => heard.push(streams.status));
  page.socket.open();
  page.socket.drop();
  wait(page);
  page.socket.open();
  streams.close();
  assert.deepEqual(heard, ["connecting", "live", "waiting", "connecting", "live", "closed"]);
  stop();
});

test("a stream's status is the connection's, and connecting until the stream itself has answered", (t) => {
  const page = new Page(t);
  page.connect({ hello: null });
  const { stream, script, told } = page.open("a", { isGreeted: false });
  const statuses = [stream.snapshot().status];
  stream.subscribe(() => statuses.push(stream.snapshot().status));
  page.socket.open();
  page.socket.say(script.subscribed());
  page.socket.drop();
  wait(page);
  page.socket.open();
  page.socket.say(script.subscribed());
  stream.close();
  statuses.push(stream.snapshot().status);
  const found = statuses.filter((status, place) => status !== statuses[place - 1]);
  assert.deepEqual(found, ["connecting", "live", "waiting", "connecting", "live", "closed"]);
  assert.ok(told.count);
});

test("a stream that is opened before the socket is open is subscribed to once it is", (t) => {
  const page = new Page(t);
  page.connect({ hello: null });
  page.streams.open("a");
  page.streams.focus(["a"]);
  assert.deepEqual(page.socket.raw, []);
  page.socket.open();
  assert.deepEqual(page.socket.sent, [{ t: "subscribe", sid: "a", mode: "full" }]);
});

// -- backoff

test("the pause doubles from half a second to ten, each time a random part of it", (t) => {
  const page = new Page(t);
  page.connect({ EventSource: undefined });
  const pauses = [];
  page.random = 0.999;
  for (let tries = 0; tries < 8; tries++) {
    page.socket.drop();
    pauses.push(wait(page));
    page.socket.open();
  }
  assert.deepEqual(pauses, [500, 999, 1998, 3996, 7992, 9990, 9990, 9990]);
  page.random = 0.25;
  page.socket.drop();
  assert.equal(wait(page), 2500);
  page.socket.open();
  page.random = 0;
  page.socket.drop();
  assert.equal(wait(page), 0);
});

test("ten seconds of health set the pause back to half a second; less do not", (t) => {
  const page = connected(t);
  page.random = 0.999;
  for (let tries = 0; tries < 3; tries++) {
    page.socket.drop();
    wait(page);
    page.socket.open();
  }
  page.tick(9_900);
  page.socket.drop();
  assert.equal(wait(page), 3996);
  page.socket.open();
  page.tick(10_000);
  page.socket.drop();
  assert.equal(wait(page), 500);
});

test("after bye the page comes back in retry_ms, whatever the backoff is, and closes the old socket", (t) => {
  const { page, stream, script } = talking(t);
  const [first] = page.sockets;
  page.random = 0.999;
  page.socket.say(script.delta(2, "cd"), { t: "bye", reason: "restart", retry_ms: 883 });
  assert.deepEqual([page.streams.status, first.isClosedByPage], ["waiting", true]);
  assert.equal(wait(page), 883);
  page.socket.open();
  assert.equal(page.socket.sent[0].cursor, "epoch123.2.2~4");
  assert.deepEqual(texts(stream), [["abcd"]]);
  page.socket.drop();
  assert.equal(wait(page), 500, "bye is no failure");
});

test("the close of a socket that the page has left behind does nothing", (t) => {
  const { page } = talking(t);
  const [first] = page.sockets;
  first.say({ t: "bye", reason: "slow", retry_ms: 100 });
  page.tick(100);
  page.socket.open();
  first.drop();
  first.say({ t: "bye", reason: "slow", retry_ms: 100 });
  page.tick(1_000);
  assert.deepEqual([page.sockets.length, page.streams.status], [2, "live"]);
});

test("a socket that does not open within ten seconds is given up", (t) => {
  const page = new Page(t);
  page.connect({ hello: null });
  page.tick(9_000);
  assert.equal(page.streams.status, "connecting");
  page.tick(4_000);
  assert.deepEqual([page.sockets[0].isClosedByPage, page.sockets.length], [true, 2]);
});

test("what is on screen stays while the connection is away, and goes on at the character", (t) => {
  const { page, stream, script } = talking(t);
  const { messages } = stream.snapshot();
  page.socket.drop();
  assert.equal(stream.snapshot().messages, messages);
  wait(page);
  page.socket.open();
  assert.equal(stream.snapshot().messages, messages);
  assert.equal(page.socket.sent[0].cursor, "epoch123.2.2~2");
  page.socket.say(script.subscribed(), script.delta(2, "cd"));
  assert.deepEqual(texts(stream), [["abcd"]]);
});

test("frames of the new socket before its answer to subscribe are passed over", (t) => {
  const { page, stream, script } = talking(t);
  page.socket.drop();
  wait(page);
  page.socket.open();
  page.socket.say(script.delta(2, "cd"));
  assert.deepEqual(texts(stream), [["ab"]]);
});

test("all streams are subscribed to again, with cursors and modes, in one message", (t) => {
  const page = connected(t);
  for (const sid of ["a", "b", "c"]) page.open(sid);
  page.streams.focus(["b"]);
  page.socket.drop();
  wait(page);
  page.socket.open();
  assert.equal(page.socket.raw.length, 1);
  assert.deepEqual(page.socket.sent, [
    { t: "subscribe", sid: "a", cursor: "epoch123.0", mode: "activity" },
    { t: "subscribe", sid: "b", cursor: "epoch123.0", mode: "full" },
    { t: "subscribe", sid: "c", cursor: "epoch123.0", mode: "activity" },
  ]);
});

test("many streams are subscribed to again in messages of at most max_in bytes, and as few as that allows", (t) => {
  for (let max = 1_000; max < 1_080; max++) {
    const page = new Page(t);
    page.connect({ hello: { max_in: max } });
    for (let n = 0; n < 40; n++) page.open(`stream-${"x".repeat(n)}`);
    page.socket.drop();
    wait(page);
    page.socket.open();
    const sizes = page.socket.raw.map((text) => Buffer.byteLength(text));
    assert.ok(sizes.length > 1);
    assert.ok(Math.max(...sizes) <= max, `${sizes}, ${max}`);
    for (const [place, messages] of page.socket.messages.entries()) {
      const next = page.socket.messages[place + 1];
      if (next) assert.ok(Buffer.byteLength(JSON.stringify([...messages, next[0]])) > max);
    }
    assert.equal(page.socket.sent.length, 40);
    assert.equal(new Set(page.socket.sent.map(({ sid }) => sid)).size, 40);
    page.streams.close();
  }
});

test("a page that says too much is quiet for a second, then comes back with all it wants", (t) => {
  const page = connected(t);
  page.open("a");
  page.socket.say({ t: "error", code: "rate", msg: "more than 50 messages a second; this one was dropped" });
  assert.equal(page.streams.status, "waiting");
  assert.equal(wait(page), 1_000);
  page.socket.open();
  assert.equal(page.socket.named("subscribe").length, 1);
});

// -- silence

test("a page that hears nothing for a heartbeat asks, and an answer is enough", (t) => {
  const page = connected(t);
  page.tick(14_900);
  assert.deepEqual(page.socket.named("ping"), []);
  page.tick(2_600);
  assert.equal(page.socket.named("ping").length, 1);
  page.socket.say({ t: "pong", id: page.socket.named("ping")[0].id });
  page.tick(14_900);
  assert.equal(page.socket.named("ping").length, 1);
  page.tick(2_600);
  assert.equal(page.socket.named("ping").length, 2);
  assert.equal(page.sockets.length, 1);
});

test("without an answer within half a heartbeat the socket is left, though readyState says OPEN", (t) => {
  const page = connected(t);
  page.socket.die();
  page.tick(22_400);
  assert.equal(page.sockets.length, 1);
  page.tick(2_700);
  assert.deepEqual([page.sockets.length, page.sockets[0].isClosedByPage], [2, true]);
  page.socket.open();
  assert.equal(page.streams.status, "live");
});

test("the heartbeat is the server's", (t) => {
  const page = new Page(t);
  page.connect({ hello: { ping_s: 60 } });
  page.socket.die();
  page.tick(59_000);
  assert.deepEqual(page.socket.named("ping"), []);
  page.tick(30_000);
  assert.equal(page.sockets.length, 1);
  page.tick(4_000);
  assert.equal(page.sockets.length, 2);
});

for (const ping_s of [1, 3, 4, 7]) {
  test(`a quiet page is asked before it is taken for dead, with a heartbeat of ${ping_s} s too`, (t) => {
    const page = new Page(t);
    page.connect({ hello: { ping_s } });
    let answered = 0;
    for (let ms = 0; ms < 60_000; ms += 100) {
      page.tick(100);
      const asked = page.socket.named("ping").length;
      if (asked > answered) page.socket.say({ t: "pong" });
      answered = asked;
    }
    assert.equal(page.sockets.length, 1);
  });
}

test("anything that is heard counts as a sign of life", (t) => {
  const { page, script } = talking(t);
  for (let n = 0; n < 20; n++) {
    page.tick(10_000);
    page.socket.say(script.delta(2, "x"));
  }
  assert.deepEqual([page.sockets.length, page.socket.named("ping").length], [1, 0]);
});

for (const [name, wake] of [
  ["comes back on screen", (page) => (page.hide(), page.clock.sleep(23_000), page.hide(false))],
  ["is online again", (page) => (page.clock.sleep(23_000), page.happen("online"))],
  ["wakes from sleep", (page) => (page.clock.sleep(3_600_000), page.tick(2_500))],
]) {
  test(`a page that ${name} after a heartbeat and a half of silence reconnects at once, whatever readyState says`, (t) => {
    const { page, stream } = talking(t);
    page.socket.die();
    wake(page);
    page.tick(0);
    assert.equal(page.sockets[0].readyState === 1 || page.sockets[0].isClosedByPage, true);
    assert.equal(page.sockets.length, 2);
    page.socket.open();
    assert.equal(page.socket.sent[0].cursor, "epoch123.2.2~2");
    assert.deepEqual(texts(stream), [["ab"]]);
  });
}

test("a new socket is given its time, however long the silence before it was", (t) => {
  const { page } = talking(t);
  page.clock.sleep(3_600_000);
  page.tick(2_500);
  page.socket.open(null);
  page.tick(12_000);
  assert.deepEqual([page.sockets.length, page.socket.named("ping")], [2, []]);
});

for (const [name, wake] of [
  ["comes back on screen", (page) => (page.hide(), page.clock.sleep(22_000), page.hide(false))],
  ["is online again", (page) => (page.clock.sleep(22_000), page.happen("online"))],
]) {
  test(`a page that ${name} after less than that keeps its socket`, (t) => {
    const { page } = talking(t);
    wake(page);
    page.tick(0);
    assert.equal(page.sockets.length, 1);
  });
}

for (const [name, wake] of [
  ["comes back on screen", (page) => (page.hide(), page.hide(false))],
  ["is online again", (page) => page.happen("online")],
]) {
  test(`a page that waits for its next try and ${name} tries at once, and once`, (t) => {
    const { page } = talking(t);
    page.random = 0.999;
    page.socket.drop();
    wake(page);
    assert.deepEqual([page.sockets.length, page.streams.status], [2, "connecting"]);
    wake(page);
    page.socket.open();
    page.tick(9_000);
    assert.equal(page.sockets.length, 2);
  });
}

test("a quiet hidden page, whose timers run once a minute, is not taken for dead", (t) => {
  const page = connected(t);
  page.hide();
  for (let minute = 0; minute < 10; minute++) {
    const asked = page.socket.named("ping").length;
    page.clock.sleep(60_000);
    page.tick(0);
    assert.equal(page.socket.named("ping").length, asked + 1);
    page.socket.say({ t: "pong" });
  }
  assert.equal(page.sockets.length, 1);
});

test("a hidden page whose ping is not answered until the next minute reconnects", (t) => {
  const page = connected(t);
  page.hide();
  page.socket.die();
  page.clock.sleep(60_000);
  page.tick(0);
  assert.equal(page.sockets.length, 1);
  page.clock.sleep(60_000);
  page.tick(0);
  assert.equal(page.sockets.length, 2);
});

// -- the page

test("the server is told when the page is hidden and when it is shown", (t) => {
  const page = connected(t);
  page.hide();
  page.hide(false);
  assert.deepEqual(page.socket.sent, [{ t: "visibility", hidden: true }, { t: "visibility", hidden: false }]);
});

test("a page that is hidden when a socket opens says so; one that is seen has nothing to say", (t) => {
  const page = connected(t, { hidden: true });
  assert.deepEqual(page.socket.sent, [{ t: "visibility", hidden: true }]);
  page.socket.drop();
  wait(page);
  page.hide(false);
  assert.deepEqual(page.socket.raw, []);
  page.socket.open();
  assert.deepEqual(page.socket.named("visibility"), []);
});

test("the page may say itself whether it is seen", (t) => {
  const page = new Page(t);
  page.connect({ visible: () => false });
  assert.deepEqual(page.socket.sent, [{ t: "visibility", hidden: true }]);
});

test("a page that is put into the back-forward cache closes and does not come back; one that is restored does", (t) => {
  const { page, stream } = talking(t);
  page.happen("pagehide", { persisted: true });
  assert.deepEqual([page.sockets[0].isClosedByPage, page.streams.status], [true, "waiting"]);
  page.happen("online");
  page.hide();
  page.hide(false);
  page.tick(3_600_000);
  assert.equal(page.sockets.length, 1);
  page.happen("pageshow", { persisted: true });
  assert.equal(page.sockets.length, 2);
  page.socket.open();
  assert.deepEqual([page.streams.status, page.socket.sent[0].cursor], ["live", "epoch123.2.2~2"]);
  assert.deepEqual(texts(stream), [["ab"]]);
});

test("a page that is cached while it waits for its next try does not come back either", (t) => {
  const { page } = talking(t);
  page.socket.drop();
  page.happen("pagehide", { persisted: true });
  page.tick(60_000);
  assert.equal(page.sockets.length, 1);
  page.happen("pageshow", { persisted: true });
  assert.equal(page.sockets.length, 2);
});

test("the pageshow of a page's first showing does nothing", (t) => {
  const page = connected(t);
  page.happen("pageshow", { persisted: false });
  assert.equal(page.sockets.length, 1);
});

test("a page that closes its streams does not come back, and leaves no timer and no listener", (t) => {
  const { page, stream } = talking(t);
  page.streams.close();
  assert.deepEqual([page.sockets[0].isClosedByPage, page.streams.status], [true, "closed"]);
  assert.equal(stream.snapshot().status, "closed");
  assert.deepEqual(texts(stream), [["ab"]]);
  for (const type of ["online", "pagehide", "pageshow"]) page.happen(type);
  page.hide();
  page.hide(false);
  page.tick(120_000);
  assert.deepEqual([page.sockets.length, page.streams.status, page.clock.timers.size], [1, "closed", 0]);
  page.streams.close();
});

test("a page that closes its streams while it waits, or before its socket is open, does not come back", (t) => {
  const waiting = connected(t);
  waiting.socket.drop();
  waiting.streams.close();
  waiting.tick(60_000);
  assert.equal(waiting.sockets.length, 1);
  waiting.connect({ hello: null });
  waiting.streams.close();
  waiting.socket.open(null);
  waiting.tick(60_000);
  assert.deepEqual([waiting.sockets.length, waiting.streams.status], [2, "closed"]);
});

test("a stream that is closed is unsubscribed from, is not subscribed to again, and a new one is another object", (t) => {
  const page = connected(t);
  const { stream } = page.open("a");
  stream.close();
  stream.close();
  assert.deepEqual(page.socket.named("unsubscribe"), [{ t: "unsubscribe", sid: "a" }]);
  page.socket.drop();
  wait(page);
  page.socket.open();
  assert.deepEqual(page.socket.sent, []);
  const again = page.streams.open("a");
  assert.notEqual(again, stream);
  assert.deepEqual(page.socket.sent, [{ t: "subscribe", sid: "a", mode: "full" }]);
});

test("a stream that is closed while it waits to ask again does not ask", (t) => {
  const { page, stream, script } = talking(t);
  page.socket.say(script.delta(2, "x", 9), script.subscribed(), script.delta(2, "x", 9));
  const before = page.socket.named("subscribe").length;
  stream.close();
  page.tick(2_000);
  assert.equal(page.socket.named("subscribe").length, before);
});

// -- what can't be parsed

for (const junk of ["", "{", "undefined", '[{"t":"event"', "[null]", "null"]) {
  test(`${junk || "an empty message"} is reported once, however often it comes, and hurts nothing`, (t) => {
    const { page, stream, script } = talking(t);
    for (let n = 0; n < 3; n++) page.socket.text(junk);
    page.expect(1);
    page.socket.say(script.delta(2, "cd"));
    assert.deepEqual([texts(stream), page.sockets.length], [[["abcd"]], 1]);
  });
}

test("a frame that makes no sense takes none of its neighbours along", (t) => {
  const { page, stream, script } = talking(t);
  page.socket.say(script.delta(2, "c"), null, script.delta(2, "d"));
  page.expect(1);
  assert.deepEqual(texts(stream), [["abcd"]]);
});

test("a single frame, not in an array, is a frame too", (t) => {
  const { page, stream, script } = talking(t);
  page.socket.text(JSON.stringify(script.delta(2, "c")));
  assert.deepEqual(texts(stream), [["abc"]]);
});
