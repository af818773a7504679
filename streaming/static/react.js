// react.js - streams as React hooks. React is the app's own: `react` must be known to its bundler or import map.
//
//     const streams = connect("/streams");           // once, outside of components
//     const { messages } = useStream(streams.open("chat-42"));

import { useSyncExternalStore } from "react";

// The snapshot of a stream; renders again when it is another one.
export function useStream(stream) {
  return useSyncExternalStore(stream.subscribe, stream.snapshot, stream.snapshot);
}

// The summaries of all streams.
export function useActivity(streams) {
  return useStream(streams.activity);
}

// The state of the connection.
export function useStatus(streams) {
  const status = () => streams.status;
  return useSyncExternalStore(streams.subscribe, status, status);
}
