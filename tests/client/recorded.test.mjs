// What the real server said, recorded by tests/record_frames.py, makes the snapshot that the server has.

import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { test } from "node:test";
import { Page } from "./fakes.mjs";

const FOLDER = new URL("../frames/", import.meta.url);
const SCENARIOS = readdirSync(FOLDER).filter((name) => name.endsWith(".json"));

const WAYS = {
  "as they came": (socket, frames) => socket.say(...frames),
  "one at a time": (socket, frames) => frames.forEach((frame) => socket.say(frame)),
  "each text and event twice": (socket, frames) => {
    for (const frame of frames) socket.say(...(["event", "delta"].includes(frame.t) ? [frame, frame] : [frame]));
  },
};

function play(t, { sid, steps, snapshot }, say) {
  const page = new Page(t);
  page.connect({ hello: null });
  page.streams.focus(steps[0].mode === "activity" ? [] : [sid]);
  const stream = page.streams.open(sid);
  stream.subscribe(() => stream.snapshot());
  for (const { connect, focus, message, urgent } of steps) {
    if (message) {
      say(page.socket, message);
      page.frame();
    } else if (focus) {
      page.streams.focus(focus);
    } else if (urgent) {
      assert.deepEqual(page.streams.activity.snapshot().get(sid).urgent, urgent);
    } else {
      if (page.sockets.length > 1 || page.socket.readyState) {
        page.socket.drop();
        page.tick(10_000);
      }
      page.socket.open(null);
      assert.equal(page.socket.named("subscribe")[0].cursor ?? null, connect);
    }
  }
  const { messages, events } = stream.snapshot();
  const plain = ({ mid, role, meta, status, parts }) => ({
    mid,
    role,
    meta,
    status,
    parts: parts.map(({ kind, meta, text, open }) => ({ kind, meta, s: text, open })),
  });
  const told = snapshot.messages.map((message) => ({ ...message, parts: message.parts.map(({ p, ...part }) => part) }));
  assert.deepEqual(messages.map(plain), told);
  assert.deepEqual(events, snapshot.events);
  assert.deepEqual(page.socket.named("subscribe").length, 1, "frames that do not fit");
  return messages;
}

assert.ok(SCENARIOS.length >= 8);
for (const name of SCENARIOS) {
  const recorded = JSON.parse(readFileSync(new URL(name, FOLDER), "utf8"));
  for (const [way, say] of Object.entries(WAYS)) {
    test(`${name}, ${way}: ${recorded.about}`, (t) => void play(t, recorded, say));
  }
}

test("the recorded endings have their status, error and usage", (t) => {
  const recorded = (name) => JSON.parse(readFileSync(new URL(name, FOLDER), "utf8"));
  const ends = play(t, recorded("endings.json"), WAYS["as they came"]).map(({ status, error }) => [status, error]);
  assert.deepEqual(ends, [["complete", null], ["cancelled", null], ["aborted", null], ["error", "the model is away"], ["open", null]]);
  const [{ usage }] = play(t, recorded("thinking.json"), WAYS["as they came"]);
  assert.deepEqual(usage, { tokens: 12 });
});
