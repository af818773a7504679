"""An example backend: a process of its own that sends the records of pages. It needs the standard library only.

    python examples/backend.py --port 3001
    curl -N http://127.0.0.1:3001/inbox

Each path is a page: `/inbox` takes about five seconds, `/broken` fails in the middle. `?pause=0.05` sets the seconds
between two records.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from typing import Any
from urllib.parse import parse_qs, urlsplit

log = logging.getLogger("examples.backend")

Record = dict[str, Any]

PAUSE = 0.3  # seconds between two records, if the query does not say
MAX_PAUSE = 5.0

MESSAGES: list[Record] = [
    {
        "id": 101,
        "sender": "Ada Winter",
        "subject": "Gauge 4 needs a new seal",
        "time": "08:12",
        "folder": "Maintenance",
        "summary": ["Water seeps past the seal of gauge 4.", "A spare is on the shelf.", "Can be done on Thursday."],
    },
    {
        "id": 102,
        "sender": "Tomás Rey",
        "subject": "Minutes of the spring meeting",
        "time": "09:40",
        "folder": "Meetings",
        "summary": ["The budget is agreed.", "The open day moves to June.", "Two people are wanted for the stand."],
    },
    {
        "id": 103,
        "sender": "Weather service",
        "subject": "Heavy rain from Friday noon",
        "time": "10:05",
        "folder": "Alerts",
        "summary": ["Up to 60 mm until Saturday.", "The upper gate should be opened <beforehand>."],
    },
    {
        "id": 104,
        "sender": "Li Na",
        "subject": "Photos from the old mill",
        "time": "11:31",
        "folder": "Meetings",
        "summary": ["Twelve photos for the exhibition.", "She asks which three to print large."],
    },
]


def inbox() -> Iterator[Record]:
    """The records of the inbox: a shell, a list, then one boundary per message, whose summaries grow side by side."""
    owner = "inbox.html"  # the template in which the tags stand
    unread: dict[str, int] = {}
    for message in MESSAGES:
        unread[message["folder"]] = unread.get(message["folder"], 0) + 1
    heads = [{key: message[key] for key in ("id", "sender", "subject", "time")} for message in MESSAGES]

    yield {"type": "start", "version": 2, "state": {"user": "Jo Miller", "expected": len(MESSAGES)}}
    yield resume(owner, "folders", {"folders": list_folders(unread), "messages": heads}, updatable=True)
    written = [write_summary(message) for message in MESSAGES]
    for message, states in zip(MESSAGES, written, strict=True):
        yield resume(owner, "summary", next(states), key=message["id"], updatable=True)
        yield update(owner, "summary", next(states), key=message["id"])
    yield resume("stream.html", "status", {"status": f"{len(MESSAGES)} messages, sorted by time."})
    for message, states in zip(MESSAGES, written, strict=True):
        for state in states:
            yield update(owner, "summary", state, key=message["id"])
        unread[message["folder"]] -= 1
        yield update(owner, "folders", {"folders": list_folders(unread)})


def broken() -> Iterator[Record]:
    """The same page, but the backend gives up in the middle."""
    records = inbox()
    yield from islice(records, 5)
    yield {"type": "abort", "message": "the summary service is down"}


PAGES: dict[str, Callable[[], Iterator[Record]]] = {"/inbox": inbox, "/broken": broken}


def list_folders(unread: dict[str, int]) -> list[Record]:
    """The folders as the template wants them."""
    return [{"name": name, "unread": count, "most": len(MESSAGES)} for name, count in unread.items()]


def write_summary(message: Record) -> Iterator[Record]:
    """States of one message's summary: a sentence more each time."""
    sentences = message["summary"]
    for count in range(1, len(sentences) + 1):
        yield {"summary": " ".join(sentences[:count]), "is_done": count == len(sentences)}


def resume(owner: str, name: str, state: Record, *, key: int | None = None, updatable: bool = False) -> Record:
    """A record that renders the boundary the page waits at."""
    mode = "updatable" if updatable else "final"
    return {"type": "resume", "boundary": boundary(owner, name, key), "mode": mode, "state": state}


def update(owner: str, name: str, state: Record, *, key: int | None = None) -> Record:
    """A record that renders an updatable boundary again."""
    return {"type": "update", "boundary": boundary(owner, name, key), "state": state}


def boundary(owner: str, name: str, key: int | None) -> Record:
    """What names a boundary: the template file, the tag's name, and the key of its occurrence if it has one."""
    return {"owner": owner, "name": name} | ({} if key is None else {"key": key})


def read_pause(query: str) -> float:
    """Seconds between two records, from a query such as `pause=0.5`; PAUSE if it makes no sense."""
    try:
        pause = float(parse_qs(query).get("pause", [""])[0])
    except ValueError:
        return PAUSE
    return min(pause, MAX_PAUSE) if pause >= 0 else PAUSE


class Handler(BaseHTTPRequestHandler):
    """Answers one request, in a thread of its own."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Send a page's records, each as one chunk."""
        target = urlsplit(self.path)
        if target.path not in PAGES:
            self.send_error(404, explain=f"Pages: {', '.join(PAGES)}")
            return
        sent = 0
        try:
            self.send_response(200)
            self.send_header("Content-Type", "application/x-ndjson")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for record in PAGES[target.path]():
                if sent:
                    time.sleep(read_pause(target.query))
                self._send_chunk(json.dumps(record).encode() + b"\n")
                sent += 1
            self._send_chunk(b"")
        except OSError:
            self.close_connection = True
            log.info("%s: the client left, %d records had been sent", target.path, sent)

    def _send_chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def log_message(self, format: str, *args: Any) -> None:
        """Log a request, as the standard library's server words it."""
        log.info(format, *args)


class Backend(ThreadingHTTPServer):
    """The server. A connection that breaks is one line in the log."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Called when a request failed outside the handler's own care."""
        log.warning("a request failed: %s", sys.exc_info()[1])


def stop_on_signals(server: Backend) -> None:
    """End quietly on SIGTERM and Ctrl-C."""

    def stop(*_: Any) -> None:
        # In a thread, since `shutdown` waits for the loop that this signal has interrupted.
        threading.Thread(target=server.shutdown).start()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)


def stop_with_input(server: Backend) -> None:
    """End when standard input does: whoever started this process and kept the other end of the pipe has gone."""

    def watch() -> None:
        # Not through `sys.stdin`, whose lock the interpreter wants at its end.
        while os.read(0, 4_096):
            pass
        server.shutdown()

    threading.Thread(target=watch, daemon=True).start()


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    summary, _, details = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=details, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--port", type=int, default=3001, help="port on 127.0.0.1 (default 3001; 0 takes a free one)")
    parser.add_argument("--until-stdin-ends", action="store_true", help="end when standard input is closed")
    return parser.parse_args()


def main() -> None:
    """Serve until a signal comes."""
    arguments = parse_arguments()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        server = Backend(("127.0.0.1", arguments.port), Handler)
    except (OSError, OverflowError) as error:
        sys.exit(f"cannot listen on 127.0.0.1:{arguments.port} ({error}); choose another --port")
    stop_on_signals(server)
    if arguments.until_stdin_ends:
        stop_with_input(server)
    # Whoever started this may have gone before it reads the line.
    with contextlib.suppress(BrokenPipeError):
        print(f"backend on http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever(poll_interval=0.1)


if __name__ == "__main__":
    main()
