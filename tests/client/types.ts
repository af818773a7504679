// Checked by tsc, never run: every public name of client.d.ts and react.d.ts as a page uses it, and, below
// `@ts-expect-error`, what must be refused.

import { connect } from "../../streaming/static/client.js";
import type {
  Activity,
  Event,
  Json,
  Message,
  Options,
  Part,
  Snapshot,
  Status,
  Stop,
  Stream,
  Streams,
} from "../../streaming/static/client.js";
import { useActivity, useStatus, useStream } from "../../streaming/static/react.js";

class OtherSocket extends WebSocket {}
const options: Options = { WebSocket: OtherSocket, EventSource, fetch, visible: () => !document.hidden };
const streams: Streams = connect("/streams", options);
connect();
connect("https://other.test/streams", {});

const status: Status = streams.status;
const chat: Stream = streams.open("chat-42");
const sid: string = chat.sid;
const stop: Stop = chat.subscribe(() => draw(chat.snapshot()));
stop();
streams.subscribe(() => console.log(streams.status))();
streams.focus([chat.sid]);
const sids: readonly string[] = ["a"];
streams.focus(sids);

function draw(snapshot: Snapshot): string {
  const messages: readonly Message[] = snapshot.messages;
  const events: readonly Event[] = snapshot.events;
  const unread: number = snapshot.unread;
  const why: string | undefined = snapshot.error?.code ?? snapshot.error?.msg;
  if (snapshot.status === "refused") return `${snapshot.sid}: ${why}`;
  const [message] = messages;
  if (!message) return `${events[0]?.seq}, ${events[0]?.k}, ${events[0]?.d.anything}, ${unread}`;
  const parts: readonly Part[] = message.parts;
  const about: string = `${message.mid} ${message.role} ${message.meta["model"]} ${message.usage?.["tokens"]} ${message.error}`;
  return about + parts.map(({ id, kind, meta, text, open }) => `${id.toFixed()}${kind}${meta["x"]}${text.slice(1)}${open}`);
}

function ending(message: Message): number {
  switch (message.status) {
    case "open":
    case "complete":
    case "cancelled":
    case "aborted":
    case "error":
      return 1;
  }
}

function shown(status: Status): number {
  switch (status) {
    case "connecting":
    case "live":
    case "waiting":
    case "closed":
      return 1;
  }
}

streams.activity.subscribe(() => {
  const all: ReadonlyMap<string, Activity> = streams.activity.snapshot();
  for (const [id, { state, head, chars, urgent }] of all) {
    const busy: boolean = state === "streaming" || state !== "idle";
    console.log(id.length, busy, head + chars, urgent?.k);
  }
})();

async function talk(): Promise<void> {
  await chat.cancel();
  await chat.cancel("m1");
  const data: Json = { text: "hello", list: [1, null, true, { deep: [] }] };
  const answer = await chat.publish("user.message", data);
  console.log(answer.queued);
  await chat.publish("ring");
  chat.close();
  streams.close();
}

// React: the hooks give what the snapshots are.
const snapshot: Snapshot = useStream(chat);
const summaries: ReadonlyMap<string, Activity> = useActivity(streams);
const connection: Status = useStatus(streams);
console.log(status, sid, snapshot, summaries, connection, talk, ending, shown);

// -- what must be refused

// @ts-expect-error: no such option
connect("/streams", { websocket: WebSocket });
// @ts-expect-error: not a class
connect("/streams", { WebSocket: () => null });
// @ts-expect-error: a base is text
connect(1);
// @ts-expect-error: a stream has a name
streams.open();
// @ts-expect-error: a list
streams.focus("chat-42");
// @ts-expect-error: the client's to set
streams.status = "live";
// @ts-expect-error: a snapshot is frozen
chat.snapshot().messages = [];
// @ts-expect-error: so is its list
chat.snapshot().messages.push(snapshot.messages[0]!);
// @ts-expect-error: so is a part
snapshot.messages[0]!.parts[0]!.text = "";
// @ts-expect-error: so is what the producer said of it
snapshot.messages[0]!.meta["model"] = "";
// @ts-expect-error: no such member
console.log(snapshot.seq);
// @ts-expect-error: no such status of a connection
if (streams.status === "refused") stop();
// @ts-expect-error: no such status of a message
if (snapshot.messages[0]!.status === "done") stop();
// @ts-expect-error: listeners get no arguments
chat.subscribe((found: Snapshot) => draw(found));
// @ts-expect-error: what can't be JSON
chat.publish("user.message", { when: new Date(), then: () => 1 });
// @ts-expect-error: a kind is text
chat.publish(1);
// @ts-expect-error: it may be null
console.log(streams.activity.snapshot().get("a")!.urgent.k);
// @ts-expect-error: it may not be there
console.log(streams.activity.snapshot().get("a").chars);
// @ts-expect-error: summaries are read
streams.activity.snapshot().set("a", summaries.get("a")!);
// @ts-expect-error: a stream, not its name
useStream("chat-42");
// @ts-expect-error: the connection, not a stream
useActivity(chat);
// @ts-expect-error: not part of the public face
console.log(streams.carrier);
