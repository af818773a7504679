// Without WebSockets: EventSources.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Page, Script, settled, texts } from "./fakes.mjs";

// A page for which no socket opens; `sids` are opened before it falls back.
async function fallen(t, sids = ["a"], focused = sids) {
  const page = new Page(t);
  page.connect({ hello: null });
  const streams = sids.map((sid) => page.streams.open(sid));
  if (focused !== sids) page.streams.focus(focused);
  await fallBack(page);
  return { page, streams, stream: streams[0], script: new Script(sids[0]) };
}

const SINCE_SOCKET = 19_500; // milliseconds from the making of the last WebSocket to the end of `fallBack`

async function fallBack(page) {
  for (let tries = 0; tries < 2; tries++) {
    page.socket.drop();
    page.tick(10_000);
  }
  await settled();
}

// Every EventSource that listens opens, and greets its stream.
function openAll(page, script) {
  for (const source of Object.values(page.listening)) source.open();
  if (script) page.sources.findLast(({ url }) => url.includes(`/${script.sid}/events`)).say(script.subscribed());
}

test("one failure to open a WebSocket is met by another WebSocket, two by EventSources", (t) => {
  const page = new Page(t);
  page.connect({ hello: null });
  page.streams.open("a");
  page.socket.drop();
  page.tick(500);
  assert.deepEqual([page.sockets.length, page.sources.length], [2, 0]);
  page.socket.drop();
  page.tick(1_000);
  assert.deepEqual([page.sockets.length, page.sources.length], [2, 1]);
});

test("a socket that opened in between begins the count anew", (t) => {
  const page = new Page(t);
  page.connect({ hello: null });
  page.streams.open("a");
  for (const opens of [false, true, false]) {
    if (opens) page.socket.open();
    page.socket.drop();
    page.tick(10_000);
  }
  assert.deepEqual([page.sockets.length, page.sources.length], [4, 0]);
});

test("sockets that hang count as failures", (t) => {
  const page = new Page(t);
  page.connect({ hello: null });
  page.streams.open("a");
  page.tick(30_000);
  assert.equal(page.sources.length, 1);
});

test("each focused stream has an EventSource, and all others one for their activity", async (t) => {
  const { page } = await fallen(t, ["a", "b", "c", "d"], ["b", "d"]);
  assert.deepEqual(Object.keys(page.listening).sort(), ["/activity?sid=a&sid=c", "/b/events", "/d/events"]);
});

test("status is live when the first EventSource opens, and a stream's when it is greeted", async (t) => {
  const { page, stream, script } = await fallen(t);
  assert.equal(page.streams.status, "connecting");
  openAll(page);
  assert.deepEqual([page.streams.status, stream.snapshot().status], ["live", "connecting"]);
  openAll(page, script);
  assert.equal(stream.snapshot().status, "live");
});

test("a page without streams is live over nothing, and listens once there is one", async (t) => {
  const { page } = await fallen(t, []);
  assert.deepEqual([page.streams.status, page.sources.length], ["live", 0]);
  page.streams.open("a");
  assert.deepEqual(Object.keys(page.listening), ["/a/events"]);
});

test("the same frames make the same snapshots as over a WebSocket", async (t) => {
  const { page, stream, script } = await fallen(t);
  openAll(page, script);
  const source = page.listening["/a/events"];
  source.say(script.start("m1"), script.part("m1"), script.delta(2, "ab"), script.event("note", 1), script.delta(2, "c"));
  source.say(script.partEnd(2), script.end("m1", { usage: { tokens: 1 } }));
  const over = stream.snapshot();
  page.connect();
  const { stream: other, script: twin } = page.open("a");
  page.socket.say(twin.start("m1"), twin.part("m1"), twin.delta(2, "ab"), twin.event("note", 1), twin.delta(2, "c"));
  page.socket.say(twin.partEnd(2), twin.end("m1", { usage: { tokens: 1 } }));
  const plain = (snapshot) => JSON.parse(JSON.stringify(snapshot, (key, value) => (key === "id" ? 0 : value)));
  assert.deepEqual(plain(over), plain(other.snapshot()));
});

test("the cursor of the WebSocket goes into the query", async (t) => {
  const page = new Page(t);
  page.connect();
  page.talk("a", "\u{1f600}b");
  page.socket.drop();
  page.tick(10_000);
  await fallBack(page);
  assert.equal(page.sources[0].url, "/streams/a/events?cursor=epoch123.2.2~2");
});

test("an EventSource that breaks is left and made anew with the cursor of now, for it would use its first", async (t) => {
  const { page, stream, script } = await fallen(t);
  openAll(page, script);
  const [first] = page.sources;
  first.say(script.start("m1"), script.part("m1"), script.delta(2, "abc"));
  first.fail();
  assert.deepEqual([first.isClosed, page.streams.status], [true, "waiting"]);
  page.tick(10_000);
  assert.equal(page.sources.at(-1).url, "/streams/a/events?cursor=epoch123.2.2~3");
  assert.equal(page.sockets.length, 2);
  openAll(page, script);
  page.sources.at(-1).say(script.delta(2, "d"));
  assert.deepEqual(texts(stream), [["abcd"]]);
});

test("after bye all EventSources come back in retry_ms", async (t) => {
  const { page, script } = await fallen(t, ["a", "b"]);
  openAll(page, script);
  page.listening["/a/events"].say({ t: "bye", reason: "restart", retry_ms: 700 });
  assert.deepEqual([page.listening, page.streams.status], [{}, "waiting"]);
  page.tick(699);
  assert.deepEqual(page.listening, {});
  page.tick(1);
  assert.equal(Object.keys(page.listening).length, 2);
});

test("EventSources that do not open either mean that the server is away: the next try is a WebSocket", async (t) => {
  const { page } = await fallen(t);
  page.sources[0].fail();
  page.tick(10_000);
  assert.deepEqual([page.sockets.length, page.listening], [3, {}]);
  page.socket.open();
  assert.equal(page.streams.status, "live");
});

test("a stream that alone is not served is refused, and the others go on", async (t) => {
  const { page, streams, script } = await fallen(t, ["a", "b"]);
  openAll(page);
  page.listening["/a/events"].say(script.subscribed());
  const late = page.streams.open("c");
  const source = page.listening["/c/events"];
  source.fail(true);
  assert.ok(source.isClosed, "it would come back by itself");
  assert.equal(late.snapshot().status, "refused");
  assert.ok(late.snapshot().error.code);
  assert.deepEqual([page.streams.status, streams[0].snapshot().status], ["live", "live"]);
});

test("a stream that the network took, and not the server, is not called refused", async (t) => {
  const { page } = await fallen(t);
  openAll(page);
  const late = page.streams.open("c");
  page.listening["/c/events"].fail();
  assert.deepEqual([page.streams.status, late.snapshot().status, late.snapshot().error], ["waiting", "waiting", null]);
});

test("a WebSocket is tried each minute though the EventSources do not last as long", async (t) => {
  const { page } = await fallen(t);
  for (let second = 0; second < 150; second++) {
    for (const source of page.sources) if (!source.isClosed && source.readyState === 0) source.open();
    if (second % 20 === 19) page.sources.filter(({ isClosed }) => !isClosed).forEach((source) => source.fail());
    page.tick(1_000);
  }
  assert.ok(page.sockets.length >= 4, `${page.sockets.length - 2} more`);
});

test("a stream that is not served, and says so first, takes no other along", async (t) => {
  const { page, streams } = await fallen(t, ["a", "b"]);
  page.listening["/a/events"].fail(true);
  page.listening["/b/events"].open().say(new Script("b").subscribed());
  assert.deepEqual(streams.map((stream) => stream.snapshot().status), ["refused", "live"]);
});

test("a change of focus changes what is listened to, and a stream goes on where it stood", async (t) => {
  const { page, stream, script } = await fallen(t, ["a", "b"], ["a"]);
  openAll(page, script);
  page.listening["/a/events"].say(script.start("m1"), script.part("m1"), script.delta(2, "abc"));
  page.streams.focus(["b"]);
  assert.deepEqual(Object.keys(page.listening).sort(), ["/activity?sid=a", "/b/events"]);
  page.streams.focus(["a", "b"]);
  assert.deepEqual(Object.keys(page.listening).sort(), ["/a/events?cursor=epoch123.2.2~3", "/b/events"]);
  page.listening["/a/events?cursor=epoch123.2.2~3"].say(script.subscribed(), script.delta(2, "d"));
  assert.deepEqual(texts(stream), [["abcd"]]);
});

test("what did not change keeps its EventSource", async (t) => {
  const { page } = await fallen(t, ["a", "b", "c"], ["a"]);
  const kept = page.listening["/a/events"];
  page.streams.focus(["a", "c"]);
  page.hide();
  assert.equal(page.listening["/a/events"], kept);
});

test("a stream that is closed is not listened to any more", async (t) => {
  const { page, stream } = await fallen(t, ["a", "b"]);
  stream.close();
  assert.deepEqual(Object.keys(page.listening), ["/b/events"]);
});

test("frames that do not fit make an EventSource with the cursor", async (t) => {
  const { page, script } = await fallen(t);
  openAll(page, script);
  page.listening["/a/events"].say(script.start("m1"), script.part("m1"), script.delta(2, "ab"), script.delta(2, "x", 9));
  assert.deepEqual(Object.keys(page.listening), ["/a/events?cursor=epoch123.2.2~2"]);
});

test("activity and notify come over the EventSource of the others", async (t) => {
  const { page, streams } = await fallen(t, ["a", "b"], ["a"]);
  openAll(page, new Script("a"));
  const source = page.listening["/activity?sid=b"];
  source.say({ t: "activity", items: [{ sid: "b", state: "streaming", head: 4, chars: 9 }] });
  source.say({ t: "notify", sid: "b", seq: 5, k: "alarm", d: 1 });
  const urgent = { seq: 5, k: "alarm", d: 1 };
  assert.deepEqual(page.streams.activity.snapshot().get("b"), { state: "streaming", head: 5, chars: 9, urgent });
  assert.deepEqual([streams[1].snapshot().status, streams[1].snapshot().unread], ["live", 5]);
});

test("of more than four focused streams four are sent in full, and the others are summarised", async (t) => {
  const { page, streams } = await fallen(t, ["a", "b", "c", "d", "e"]);
  assert.deepEqual(Object.keys(page.listening).sort(), ["/a/events", "/activity?sid=e", "/b/events", "/c/events", "/d/events"]);
  openAll(page, new Script("a"));
  page.listening["/activity?sid=e"].say({ t: "activity", items: [{ sid: "e", state: "streaming", head: 4, chars: 9 }] });
  const summary = { state: "streaming", head: 4, chars: 9, urgent: null };
  assert.deepEqual(page.streams.activity.snapshot().get("e"), summary);
  assert.equal(streams[4].snapshot().status, "live");
});

test("the state of a stream that was summarised without a WebSocket is what the page sees over one", async (t) => {
  const { page } = await fallen(t, ["a", "b", "c", "d", "e"]);
  openAll(page, new Script("a"));
  page.listening["/activity?sid=e"].say({ t: "activity", items: [{ sid: "e", state: "streaming", head: 2, chars: 9 }] });
  page.tick(63_000);
  page.socket.open();
  const script = new Script("e");
  page.socket.say(script.subscribed(), script.start("m1"), script.end("m1"));
  assert.equal(page.streams.activity.snapshot().get("e").state, "idle");
});

test("as many streams are summarised as a query of 4,000 characters names", async (t) => {
  const sids = Array.from({ length: 60 }, (_, n) => `${n}`.padStart(96, "s")); // 100 characters each with "sid=" and "&"
  const asked = async (count) => {
    const { page } = await fallen(t, sids.slice(0, count), []);
    const [path] = Object.keys(page.listening);
    return path.split("sid=").length - 1;
  };
  assert.deepEqual([await asked(39), await asked(40), await asked(60)], [39, 40, 40]);
});

test("after a minute a WebSocket is tried beside the EventSources, and when it opens they are closed", async (t) => {
  const { page, stream, script } = await fallen(t);
  openAll(page, script);
  page.listening["/a/events"].say(script.start("m1"), script.part("m1"), script.delta(2, "ab"));
  page.tick(59_000 - SINCE_SOCKET);
  assert.equal(page.sockets.length, 2);
  page.tick(4_000);
  assert.equal(page.sockets.length, 3);
  assert.deepEqual(Object.keys(page.listening), ["/a/events"]);
  page.listening["/a/events"].say(script.delta(2, "cd"));
  assert.deepEqual([texts(stream), page.streams.status], [[["abcd"]], "live"]);
  page.socket.open();
  assert.deepEqual([page.listening, page.streams.status], [{}, "live"]);
  assert.deepEqual(page.socket.sent, [{ t: "subscribe", sid: "a", cursor: "epoch123.2.2~4", mode: "full" }]);
  page.socket.say(script.subscribed(), script.delta(2, "e"));
  assert.deepEqual(texts(stream), [["abcde"]]);
  page.socket.drop();
  page.tick(10_000);
  assert.equal(page.sockets.length, 4);
});

test("a WebSocket that does not open leaves the EventSources alone, and is tried again after another minute", async (t) => {
  const { page, script } = await fallen(t);
  openAll(page, script);
  page.tick(63_000 - SINCE_SOCKET);
  page.socket.drop();
  assert.deepEqual([Object.keys(page.listening), page.streams.status], [["/a/events"], "live"]);
  page.tick(50_000);
  assert.equal(page.sockets.length, 3);
  page.tick(13_000);
  assert.equal(page.sockets.length, 4);
});

test("when the EventSources are lost while a WebSocket is tried, both are left", async (t) => {
  const { page, script } = await fallen(t);
  openAll(page, script);
  page.tick(63_000);
  page.listening["/a/events"].fail();
  assert.deepEqual([page.socket.isClosedByPage, page.streams.status], [true, "waiting"]);
});

for (const [name, wake] of [
  ["on screen", (page) => (page.hide(), page.clock.sleep(23_000), page.hide(false))],
  ["online", (page) => (page.clock.sleep(23_000), page.happen("online"))],
]) {
  test(`EventSources that were silent for a heartbeat and a half are made anew when the page is ${name} again`, async (t) => {
    const { page, script } = await fallen(t);
    openAll(page, script);
    wake(page);
    page.tick(0);
    assert.equal(page.sources.length, 2);
    assert.ok(page.sources[0].isClosed);
  });
}

test("EventSources are made anew when the page wakes from sleep", async (t) => {
  const { page, script } = await fallen(t);
  openAll(page, script);
  page.clock.sleep(3_600_000);
  page.tick(2_500);
  assert.ok(page.sources[0].isClosed);
});

test("EventSources on a page that is quiet are left alone", async (t) => {
  const { page, script } = await fallen(t);
  openAll(page, script);
  page.tick(55_000);
  assert.deepEqual([page.sources.length, page.streams.status], [1, "live"]);
});

test("pagehide closes the EventSources, pageshow makes them anew, close ends them", async (t) => {
  const { page, script } = await fallen(t);
  openAll(page, script);
  page.happen("pagehide");
  page.tick(60_000);
  assert.deepEqual(page.listening, {});
  page.happen("pageshow");
  assert.equal(Object.keys(page.listening).length, 1);
  page.streams.close();
  page.tick(120_000);
  assert.deepEqual([page.listening, page.streams.status, page.sockets.length], [{}, "closed", 2]);
});

test("cancel is posted, and publish is refused as offline", async (t) => {
  const { page, stream, script } = await fallen(t);
  openAll(page, script);
  await stream.cancel("m1");
  assert.deepEqual(page.requests.map(({ url, method, body }) => [url, method, JSON.parse(body)]), [
    ["/streams/a/cancel", "POST", { mid: "m1" }],
  ]);
  await assert.rejects(stream.publish("note"), { code: "offline" });
});

test("where there are no EventSources the page goes on with WebSockets", (t) => {
  const page = new Page(t);
  page.connect({ hello: null, EventSource: undefined });
  page.streams.open("a");
  for (let tries = 0; tries < 4; tries++) {
    page.socket.drop();
    page.tick(10_000);
  }
  assert.equal(page.sockets.length, 5);
});
