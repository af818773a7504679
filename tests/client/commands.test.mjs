// What the page says: publish, cancel; what is refused; the hooks for React.

import assert from "node:assert/strict";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { Page, load, settled, texts } from "./fakes.mjs";

function talking(t, how) {
  const page = new Page(t);
  page.connect(how);
  return { page, ...page.talk("a", "ab") };
}

test("publish sends one frame and resolves with the app's answer", async (t) => {
  const { page, stream } = talking(t);
  const answer = stream.publish("user.message", { text: "hello" });
  const [frame] = page.socket.named("publish");
  assert.deepEqual(frame, { t: "publish", sid: "a", k: "user.message", d: { text: "hello" }, id: frame.id });
  page.socket.say({ t: "ack", id: frame.id, ok: true, d: { queued: 1 } });
  assert.deepEqual(await answer, { queued: 1 });
});

test("publish without data sends null, since the server wants `d`", async (t) => {
  const { page, stream } = talking(t);
  const answer = stream.publish("ring");
  const [frame] = page.socket.named("publish");
  assert.equal(frame.d, null);
  page.socket.say({ t: "ack", id: frame.id, ok: true });
  await answer;
});

test("answers find their question by id, in whatever order they come", async (t) => {
  const { page, stream } = talking(t);
  const answers = [1, 2, 3].map((number) => stream.publish("count", number));
  const frames = page.socket.named("publish");
  assert.equal(new Set(frames.map(({ id }) => id)).size, 3);
  for (const { id, d } of frames.reverse()) page.socket.say({ t: "ack", id, ok: true, d: d * 10 });
  assert.deepEqual(await Promise.all(answers), [10, 20, 30]);
});

for (const error of ["not_supported", "failed"]) {
  test(`publish rejects with ${error} if the ack says so`, async (t) => {
    const { page, stream } = talking(t);
    const answer = stream.publish("x");
    page.socket.say({ t: "ack", id: page.socket.named("publish")[0].id, ok: false, error });
    await assert.rejects(answer, (found) => found instanceof Error && found.code === error);
  });
}

test("publish rejects with the code of an error frame that has its id", async (t) => {
  const { page, stream } = talking(t);
  const answer = stream.publish("x");
  const { id } = page.socket.named("publish")[0];
  page.socket.say({ t: "error", code: "forbidden", msg: "publish is not allowed for this stream", sid: "a", id });
  await assert.rejects(answer, { code: "forbidden", message: "publish is not allowed for this stream" });
  assert.equal(stream.snapshot().error, null);
});

test("publish rejects as offline when there is no open WebSocket, and sends nothing", async (t) => {
  const page = new Page(t);
  page.connect({ hello: null });
  const stream = page.streams.open("a");
  await assert.rejects(stream.publish("x"), { code: "offline" });
  page.socket.open();
  page.socket.drop();
  await assert.rejects(stream.publish("x"), { code: "offline" });
  assert.deepEqual(page.socket.named("publish"), []);
  page.streams.close();
  await assert.rejects(stream.publish("x"), { code: "offline" });
});

test("publish rejects as too_large above max_in, counted in bytes, and sends nothing", async (t) => {
  const { page, stream } = talking(t, { hello: { max_in: 1_000 } });
  await assert.rejects(stream.publish("x", "é".repeat(500)), { code: "too_large" });
  assert.deepEqual(page.socket.named("publish"), []);
  let size = 900;
  for (; ; size++) {
    const answer = stream.publish("x", "y".repeat(size));
    answer.catch(() => {});
    await settled();
    const bytes = page.socket.raw.filter((text) => text.includes("publish")).map((text) => text.length);
    if (bytes.length < size - 899) break;
  }
  const bytes = page.socket.raw.filter((text) => text.includes("publish")).map((text) => text.length);
  assert.equal(Math.max(...bytes), 1_000);
});

test("publish rejects as lost when the connection breaks before the answer, once", async (t) => {
  const { page, stream } = talking(t);
  const answer = stream.publish("x");
  const { id } = page.socket.named("publish")[0];
  page.socket.drop();
  await assert.rejects(answer, { code: "lost" });
  page.tick(10_000);
  page.socket.open();
  page.socket.say({ t: "ack", id, ok: true });
});

for (const [name, leave] of [
  ["the page closes its streams", (page) => page.streams.close()],
  ["the page is put away", (page) => page.happen("pagehide")],
]) {
  test(`publish rejects as lost when ${name}`, async (t) => {
    const { page, stream } = talking(t);
    const answer = stream.publish("x");
    leave(page);
    await assert.rejects(answer, { code: "lost" });
  });
}

test("an answer that comes in one message with bye is an answer", async (t) => {
  const { page, stream } = talking(t);
  const answer = stream.publish("x");
  const { id } = page.socket.named("publish")[0];
  page.socket.say({ t: "ack", id, ok: true, d: 1 }, { t: "bye", reason: "restart", retry_ms: 100 });
  assert.equal(await answer, 1);
});

test("an answer to a question that nobody asked is passed over", (t) => {
  const { page } = talking(t);
  page.socket.say({ t: "ack", id: "other", ok: true }, { t: "ack", id: 77, ok: false, error: "failed" });
});

test("cancel sends a frame, for one message or for all", async (t) => {
  const { page, stream } = talking(t);
  await stream.cancel();
  await stream.cancel("m1");
  assert.deepEqual(page.socket.named("cancel"), [{ t: "cancel", sid: "a" }, { t: "cancel", sid: "a", mid: "m1" }]);
  assert.deepEqual(page.requests, []);
});

test("cancel is posted when there is no open WebSocket, and rejects if the server refuses or is not reached", async (t) => {
  const { page, stream } = talking(t);
  page.socket.drop();
  await stream.cancel();
  const [{ url, method, body, headers }] = page.requests;
  assert.deepEqual([url, method, JSON.parse(body)], ["/streams/a/cancel", "POST", {}]);
  assert.equal(headers["Content-Type"], "application/json");
  page.answer = { ok: false, status: 403 };
  await assert.rejects(stream.cancel(), (error) => error.code === "refused" && error.message.includes("403"));
  page.answer = new TypeError("Failed to fetch");
  await assert.rejects(stream.cancel(), TypeError);
});

test("fetch may be the page's own", async (t) => {
  const page = new Page(t);
  const asked = [];
  const fetch = async (url) => (asked.push(url), { ok: true });
  page.connect({ hello: null, fetch, base: "/x" });
  await page.streams.open("a").cancel();
  assert.deepEqual([asked, page.requests], [["/x/a/cancel"], []]);
});

// -- refused

for (const code of ["forbidden", "too_many", "bad_frame"]) {
  test(`a stream that the server refuses with ${code} says why at once, and the next connection asks again`, (t) => {
    const page = new Page(t);
    page.connect();
    const { stream, script, told } = page.open("a", { isGreeted: false });
    page.socket.say({ t: "error", code, msg: "no", sid: "a" });
    assert.equal(told.count, 1);
    assert.deepEqual([told.last.status, told.last.error], ["refused", { code, msg: "no" }]);
    assert.ok(Object.isFrozen(told.last.error));
    page.socket.drop();
    page.tick(10_000);
    page.socket.open();
    page.socket.say(script.subscribed());
    assert.deepEqual([stream.snapshot().status, stream.snapshot().error], ["live", null]);
  });
}

test("a stream that was refused keeps its reason when it is focused, and is closed without a word", (t) => {
  const page = new Page(t);
  page.connect();
  const { stream } = page.open("a", { isGreeted: false });
  page.socket.say({ t: "error", code: "forbidden", msg: "no", sid: "a" });
  page.streams.focus(["a"]);
  page.socket.say({ t: "error", code: "unknown_stream", msg: "this connection has no such stream", sid: "a" });
  assert.equal(stream.snapshot().error.code, "forbidden");
  stream.close();
  assert.deepEqual(page.socket.named("unsubscribe"), []);
});

test("cancel by HTTP stays below the streams, whatever the sid", async (t) => {
  const page = new Page(t);
  page.connect({ hello: null });
  await page.streams.open("../../elsewhere?x=").cancel();
  assert.deepEqual(page.requests.map(({ url }) => url), ["/streams/..%2F..%2Felsewhere%3Fx%3D/cancel"]);
});

test("an error that is no answer to subscribe is reported once, and the stream goes on", (t) => {
  const { page, stream, script } = talking(t);
  for (let n = 0; n < 3; n++) page.socket.say({ t: "error", code: "forbidden", msg: "cancel is not allowed", sid: "a" });
  page.expect(1);
  page.socket.say(script.delta(2, "c"));
  assert.deepEqual([texts(stream), stream.snapshot().status], [[["abc"]], "live"]);
});

// -- React

test("the hooks give React the store's own subscribe and a snapshot that is stable until something changes", async (t) => {
  const { page, stream, script } = talking(t);
  const path = fileURLToPath(new URL("../../streaming/static/react.js", import.meta.url));
  const react = "data:text/javascript,export const useSyncExternalStore = (...given) => globalThis.store(...given)";
  const hooks = await load(path, (source) => source.replace('"react"', JSON.stringify(react)));
  const given = [];
  globalThis.store = (subscribe, snapshot, server) => (given.push({ subscribe, snapshot, server }), snapshot());
  t.after(() => delete globalThis.store);
  assert.equal(hooks.useStream(stream), stream.snapshot());
  assert.equal(hooks.useActivity(page.streams), page.streams.activity.snapshot());
  assert.equal(hooks.useStatus(page.streams), "live");
  hooks.useStream(stream);
  assert.equal(given[0].subscribe, given[3].subscribe);
  for (const { subscribe, snapshot, server } of given) {
    let heard = 0;
    const stop = subscribe(() => heard++);
    assert.equal(typeof stop, "function");
    assert.equal(snapshot(), snapshot());
    assert.equal(server(), snapshot());
    stop();
  }
  page.socket.say(script.delta(2, "c"));
  assert.notEqual(given[0].snapshot(), undefined);
});
