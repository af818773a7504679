// client.js as a process: lines of JSON in, one line out for each. Driven by test_client_folding.py.
//
//   {"op": "new"}                    another page; its stream "s" is open, its socket too
//   {"op": "say", "frames": [...]}   one message of the server
//   {"op": "reconnect"}              the socket is lost, and another one opens
//   {"op": "wait", "ms": 1000}
//
// The answer has what the page has sent since the last answer, whether it has been told, and, when it was `look`ed at,
// its messages and events. It has `wrong` if a text has shrunk under its id, or if something was reported.

import { createInterface } from "node:readline";
import { Page } from "./fakes.mjs";

let page, stream, texts, wrong, cleanUp;

function begin() {
  cleanUp?.();
  page = new Page({ after: (work) => (cleanUp = work) });
  page.connect();
  [texts, wrong] = [new Map(), []];
  stream = page.streams.open("s");
  stream.subscribe(look);
}

function look() {
  const { messages, events } = stream.snapshot();
  for (const { parts } of messages) {
    for (const { id, text } of parts) {
      const before = texts.get(id) ?? "";
      if (!text.startsWith(before)) wrong.push(`${id}: ${before} became ${text}`);
      texts.set(id, text);
    }
  }
  return { messages, events };
}

const OPS = {
  new: begin,
  say({ frames }) {
    page.socket.say(...frames);
  },
  reconnect() {
    page.socket.drop();
    page.tick(10_000);
    page.socket.open();
  },
  wait({ ms }) {
    page.tick(ms);
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const command = JSON.parse(line);
  OPS[command.op](command);
  const found = command.look ? look() : {};
  page.frame();
  const sent = page.socket.sent;
  page.socket.raw = [];
  wrong.push(...page.errors.splice(0).map((what) => what.join(" ")));
  process.stdout.write(`${JSON.stringify({ sent, wrong, ...found })}\n`);
}
