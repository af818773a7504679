// Types of react.js.

import type { Activity, Snapshot, Status, Stream, Streams } from "./client.js";

/** The snapshot of a stream; renders again when it is another one. */
export function useStream(stream: Stream): Snapshot;

/** The summaries of all streams. */
export function useActivity(streams: Streams): ReadonlyMap<string, Activity>;

/** The state of the connection. */
export function useStatus(streams: Streams): Status;
