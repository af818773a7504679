// Types of client.js. What each thing does is in docs/browser.md.

export interface Options {
  /** Takes the place of the global `WebSocket`. */
  WebSocket?: new (url: string) => WebSocket;
  /** Takes the place of the global `EventSource`, the fallback. */
  EventSource?: new (url: string) => EventSource;
  /** Takes the place of the global `fetch`. */
  fetch?: typeof fetch;
  /** Whether somebody can see the page; `document.visibilityState` if left out. */
  visible?: () => boolean;
}

/** Of the connection. `waiting`: it is lost, and a timer runs until the next try. */
export type Status = "connecting" | "live" | "waiting" | "closed";

/** Ends a subscription. */
export type Stop = () => void;

export type Json = null | boolean | number | string | readonly Json[] | { readonly [key: string]: Json };

export interface Part {
  /** Names this text in this page: under one `id` a text only grows. Text that was replaced has another one. */
  readonly id: number;
  /** `text`, `thinking`, `tool_args`, `tool_output`, or the app's own. */
  readonly kind: string;
  readonly meta: { readonly [key: string]: any };
  readonly text: string;
  readonly open: boolean;
}

export interface Message {
  readonly mid: string;
  readonly role: string;
  readonly status: "open" | "complete" | "cancelled" | "aborted" | "error";
  /** Why it ended, if the server said. */
  readonly error: string | null;
  readonly meta: { readonly [key: string]: any };
  readonly usage: { readonly [key: string]: any } | null;
  readonly parts: readonly Part[];
}

/** An event of the app's own. */
export interface Event {
  readonly seq: number;
  readonly k: string;
  readonly d: any;
}

export interface Snapshot {
  readonly sid: string;
  /** That of the connection; `connecting` too until the stream itself has answered; `refused`, see `error`. */
  readonly status: Status | "refused";
  /** Why the server refused the stream; null if it did not. */
  readonly error: { readonly code: string; readonly msg: string } | null;
  readonly messages: readonly Message[];
  readonly events: readonly Event[];
  /** Events of the stream, the protocol's own too, that this page has not got yet, since it is not in focus. */
  readonly unread: number;
}

export interface Activity {
  readonly state: "streaming" | "idle";
  /** The newest event's `seq`. */
  readonly head: number;
  /** Code points of text. */
  readonly chars: number;
  /** The newest event that was published as urgent while the stream was not in focus. */
  readonly urgent: Event | null;
}

export interface Stream {
  readonly sid: string;
  /** A bound function. Calls the listener when there is another snapshot: at most once a frame for text, at once for all else. */
  readonly subscribe: (listener: () => void) => Stop;
  /** A bound function. The stream as it is now. What did not change is the same object as before. */
  readonly snapshot: () => Snapshot;
  /** Stops one message, or all that are open. Rejects if the server could not be told. */
  cancel(mid?: string): Promise<void>;
  /** Sends data to the app; resolves with its answer, rejects with an Error that has the `code` of docs/browser.md. */
  publish(kind: string, data?: Json): Promise<any>;
  /** Nothing more comes of this stream. `open` makes a new object. */
  close(): void;
}

export interface Streams {
  readonly status: Status;
  /** A bound function. Calls the listener when `status` has changed. */
  readonly subscribe: (listener: () => void) => Stop;
  /** The stream; the same object for the same `sid`. */
  open(sid: string): Stream;
  /** These are on screen, and are sent in full. The others are summarised. Before the first call all are sent in full. */
  focus(sids: readonly string[]): void;
  /** Summaries of all streams, at most three times a second. */
  readonly activity: {
    readonly subscribe: (listener: () => void) => Stop;
    readonly snapshot: () => ReadonlyMap<string, Activity>;
  };
  /** Ends the connection for good. */
  close(): void;
}

/** One connection for the page. `base` is where the streams are, such as `/streams`. */
export function connect(base?: string, options?: Options): Streams;
