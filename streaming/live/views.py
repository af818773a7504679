"""The live blueprint: `/streams/...` (docs/live-protocol.md, "HTTP routes"). It checks who may, and hands over.

On our own servers a connection gets the client's socket once the response's head is sent (`handler.py`); elsewhere the
response is pulled, and there is no WebSocket.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from flask import Blueprint, Response, current_app, request, send_from_directory

from ..counts import Counts
from ..departure import TAKEOVER_KEY, client_socket
from ..errors import Refused
from ..protocol.grammar import is_mid, is_sid
from ..protocol.jsontext import decode_json
from ..state import AppState
from ..turns import give_way
from .access import Access, Rules, Visitor
from .bodies import BrokenBody, abandon, read_whole
from .connection import Connection
from .conversation import WebSocketConnection
from .dashboard import add_dashboard
from .drain import drain_on_sigterm
from .hub import Hub
from .ingest import ingest
from .pulled import PulledConnection, SendLimit
from .sockets import SocketConnection
from .transports.carrier import Carrier
from .transports.handshake import HandshakeError, handshake
from .transports.ndjson import CHUNKED_NDJSON, NDJSON
from .transports.sse import CHUNKED_SSE, SSE

log = logging.getLogger("streaming.live")

STREAMED = {"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"}
#: Carrier of our own socket with HTTP/1.1, and of all else; and the content type.
FORMS: dict[str, tuple[Carrier, Carrier, str]] = {
    "events": (CHUNKED_SSE, SSE, "text/event-stream; charset=utf-8"),
    "records": (CHUNKED_NDJSON, NDJSON, "application/x-ndjson"),
}
#: Content types of an ingest body; the last is what curl says of any body.
NDJSON_TYPES = {
    "", "application/x-ndjson", "application/ndjson", "application/jsonl", "application/json", "text/plain",
    "application/octet-stream", "application/x-www-form-urlencoded",
}  # fmt: skip
STATIC = Path(__file__).parents[1] / "static"
#: The environ's key for a pulled connection whose response has not begun.
PULLED_KEY = "streaming.pulled"
#: Seconds, for the `Retry-After` of a 429 and a 503.
RETRY_AFTER = 2
#: Bytes of the body of a cancel request, and seconds that it may take.
MAX_CANCEL = 65_536
CANCEL_TIMEOUT = 5.0


class LiveResponse(Response):
    """The response of a live connection. One that something behind the view replaces never begins; then it is cut."""

    def __call__(self, environ: Any, start_response: Any) -> Any:
        """Begin the response."""
        environ.pop(PULLED_KEY, None)
        takeover = environ.get(TAKEOVER_KEY)
        if takeover is not None:
            takeover.is_answered = True
        return super().__call__(environ, start_response)


def live_hub(state: AppState) -> Hub:
    """The app's hub in this process, made on first use."""
    return state.of_process(Hub)


def live_blueprint(state: AppState, rules: Rules) -> Blueprint:
    """Make the blueprint for one app."""
    blueprint = Blueprint("streams", __name__, url_prefix="/streams")
    access = Access(state, rules)

    @blueprint.before_request
    def check_origin() -> None:
        access.check_origin(request)

    @blueprint.after_request
    def allow_origin(response: Response) -> Response:
        return _add_cors(access, response)

    @blueprint.teardown_request
    def cut_unsent(error: BaseException | None) -> None:
        connection = request.environ.pop(PULLED_KEY, None)
        if connection is not None:
            connection.cut()

    _add_client(blueprint)
    _add_reading(blueprint, state, access)
    _add_writing(blueprint, state, access)
    add_dashboard(blueprint, state, access, lambda sid: _stream(live_hub(state), "events", [sid]))
    return blueprint


def _add_client(blueprint: Blueprint) -> None:
    @blueprint.get("/client.js")
    def client() -> Response:
        """The browser client, where its users expect it; no stream is called so."""
        return send_from_directory(STATIC, "client.js", mimetype="text/javascript", max_age=0)


def _add_reading(blueprint: Blueprint, state: AppState, access: Access) -> None:
    @blueprint.get("/ws", websocket=True)
    def websocket() -> Response:
        """Become a WebSocket."""
        return _websocket(live_hub(state), access)

    @blueprint.get("/ws", provide_automatic_options=False)
    def no_websocket() -> Response:
        """What is asked for is no WebSocket."""
        headers = [("Upgrade", "websocket"), ("Connection", "Upgrade")]
        raise Refused("upgrade_required", "this is a WebSocket; ask for an upgrade", headers=headers)

    @blueprint.get("/<sid>")
    def snapshot(sid: str) -> Response:
        """A stream as it is now."""
        _check(access, "read", sid)
        return _snapshot(live_hub(state), sid)

    @blueprint.get("/<sid>/events")
    def events(sid: str) -> Response:
        """A stream as server-sent events."""
        _check(access, "read", sid)
        return _stream(live_hub(state), "events", [sid])

    @blueprint.get("/<sid>/records")
    def records(sid: str) -> Response:
        """A stream as lines of JSON."""
        _check(access, "read", sid)
        return _stream(live_hub(state), "records", [sid])

    @blueprint.get("/activity")
    def activity() -> Response:
        """What many streams are doing, as server-sent events."""
        sids = list(dict.fromkeys(request.args.getlist("sid")))
        if not sids:
            raise Refused("bad_request", "name the streams: ?sid=one&sid=another")
        limit = state.settings.max_subscriptions
        if len(sids) > limit:
            raise live_hub(state).refusal("bad_request", f"at most {limit} streams at a time", "max_subscriptions")
        for sid in sids:
            _check(access, "read", sid)
        return _stream(live_hub(state), "events", sids, follows=False)


def _add_writing(blueprint: Blueprint, state: AppState, access: Access) -> None:
    @blueprint.post("/<sid>/records")
    def ingest_records(sid: str) -> Any:
        """Put in what a producer outside the process sends."""
        _check(access, "ingest", sid)
        producer = request.args.get("producer")
        if producer is not None and not is_mid(producer):
            raise Refused("bad_request", "`producer` has the grammar of a message id")
        if request.mimetype not in NDJSON_TYPES:
            raise Refused("unsupported_media_type", "the body is application/x-ndjson: one record a line")
        hub = live_hub(state)
        hub.check_draining({"accepted": 0})
        _see_to_drain(hub)
        return ingest(hub, sid, request.environ, producer)

    @blueprint.post("/<sid>/cancel")
    def cancel(sid: str) -> tuple[dict[str, Any], int]:
        """The stop button."""
        _check(access, "cancel", sid)
        return {"cancelled": _cancel(live_hub(state), sid)}, 202


def _check(access: Access, action: str, sid: str) -> None:
    if not is_sid(sid):
        raise Refused("bad_request", "that is no stream id: 1 to 128 of A-Z a-z 0-9 . _ ~ : -, the first no sign")
    access.check(action, sid)


def refusal_response(error: Refused) -> Response:
    """The answer to a request that was refused; an app's own views may raise it too."""
    abandon(request.environ)
    body = {"error": error.code, "message": error.message, **error.details}
    response = Response(json.dumps(body), status=error.status, mimetype="application/json")
    response.headers.extend(error.headers)
    if error.status in (429, 503):
        response.headers["Retry-After"] = str(RETRY_AFTER)
    return response


def _add_cors(access: Access, response: Response) -> Response:
    """Let the pages of allowed sites read the answer."""
    origin = request.headers.get("Origin")
    if origin is not None and access.is_foreign(origin):
        response.headers["Access-Control-Allow-Origin"] = origin
        response.headers["Access-Control-Allow-Credentials"] = "true"
        response.headers["Access-Control-Allow-Headers"] = "Content-Type, Authorization, Last-Event-ID"
        response.headers.add("Vary", "Origin")
    return response


def _see_to_drain(hub: Hub) -> None:
    """A server that is not ours must be told when to drain; Flask's test client is none."""
    if _takeover() is None and client_socket(request.environ) is not None:
        drain_on_sigterm(hub)


def _takeover() -> Any:
    """Where a connection is put that is to get the client's socket; None on servers that are not ours."""
    return request.environ.get(TAKEOVER_KEY)


def _log_connection(carrier: str) -> None:
    log.debug("%s of %s for %a", carrier, request.path.encode("unicode_escape").decode(), request.remote_addr)


def _websocket(hub: Hub, access: Access) -> Response:
    takeover = _takeover()
    if takeover is None:
        raise Refused(
            "not_supported",
            "this server can't hand over WebSockets: run gunicorn with worker_class "
            '"streaming.server.StreamingWorker", or python app.py; SSE and NDJSON work here',
        )
    try:
        headers = handshake(request.environ)
    except HandshakeError as error:
        code = "upgrade_required" if error.status == 426 else "bad_request"
        raise Refused(code, error.message, headers=error.headers) from error
    visitor = Visitor(current_app._get_current_object(), access, request.environ)  # type: ignore[attr-defined]
    connection = WebSocketConnection(hub, _address(), visitor, deltas=_folds())
    hub.join(connection)
    _count_unfolding(hub, connection)
    _log_connection("websocket")
    takeover.connection = connection
    response = LiveResponse(iter(()), status=101, headers=headers)
    del response.headers["Content-Type"]
    return response


def _stream(hub: Hub, form: str, sids: list[str], *, follows: bool = True) -> Response:
    chunked, plain, kind = FORMS[form]
    if request.method == "HEAD":
        return Response(iter(()), headers=STREAMED, content_type=kind)
    until_idle = request.args.get("until") == "idle"
    token = _token()
    if follows and until_idle and _has_all(hub, sids[0], token):
        return _no_content()
    takeover = _takeover()
    options = {"deltas": _folds(), "until_idle": until_idle and follows}
    if takeover is None:
        sock = client_socket(request.environ)
        _see_to_drain(hub)
        pulled = PulledConnection(hub, plain, _address(), sock, **options)
        connection: Connection = pulled
    else:
        is_chunked = request.environ["SERVER_PROTOCOL"] == "HTTP/1.1"
        connection = SocketConnection(hub, chunked if is_chunked else plain, _address(), **options)
    try:
        hub.join(connection)
        for sid in sids:
            hub.subscribe(connection, sid, token if follows else None, follows=follows)
    except BaseException:  # it has been counted in
        connection.cut()
        raise
    _count_unfolding(hub, connection)
    _log_connection(form)
    if takeover is None:
        request.environ[PULLED_KEY] = pulled
        return LiveResponse(pulled, headers=STREAMED, content_type=kind, direct_passthrough=True)
    takeover.connection = connection
    return LiveResponse(iter(()), headers=STREAMED, content_type=kind)


def _no_content() -> Response:
    response = Response(status=204)
    del response.headers["Content-Type"]
    return response


def _address() -> str:
    return request.remote_addr or ""


def _folds() -> bool:
    return request.args.get("deltas") != "0"


def _count_unfolding(hub: Hub, connection: Connection) -> None:
    if not connection.deltas:
        hub.counts.unfolding += 1
        log.info("a client asks for whole texts (deltas=0), which costs the square of their length: %a", _address())


def _token() -> str | None:
    """The cursor token of a request: its query, else what an EventSource remembers."""
    return request.args.get("cursor") if "cursor" in request.args else request.headers.get("Last-Event-ID") or None


def _has_all(hub: Hub, sid: str, token: str | None) -> bool:
    """Whether a client that wants the stream until it is idle has all of it already."""
    channel = hub.channels.get(sid)
    if channel is None or token is None:
        return False
    cursor = channel.stream.start(token)
    is_finished = channel.stream.is_finished and not channel.outbox
    return is_finished and cursor.greeting == "resumed" and cursor.seq == channel.stream.head


def _snapshot(hub: Hub, sid: str) -> Response:
    channel = hub.channels.get(sid)
    if channel is None:
        raise Refused("not_found", "there is no such stream")
    hub.seal(channel)
    pieces: Iterable[bytes] = iter(())
    if request.method != "HEAD":
        timeout = hub.settings.send_timeout if client_socket(request.environ) is not None else None
        pieces = Snapshot(_gently(channel.stream.snapshot()), SendLimit(timeout), hub.counts)
    return Response(pieces, mimetype="application/json", headers={"Cache-Control": "no-cache"})


class Snapshot:
    """The body of a snapshot; a client that does not read it is cut."""

    def __init__(self, chunks: Iterator[bytes], limit: SendLimit, counts: Counts) -> None:
        self._chunks = chunks
        self._limit = limit
        self._counts = counts

    def __iter__(self) -> Snapshot:
        return self

    def __next__(self) -> bytes:
        """The next chunk, in the server's greenlet."""
        self._limit.stop()
        chunk = next(self._chunks)
        self._limit.start()
        return chunk

    def close(self) -> None:
        """The server is done with it, on whatever way."""
        if self._limit.has_run_out:
            self._counts.closed["slow"] += 1
        self._limit.stop()


def _gently(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Join pieces to chunks of 64 KiB, and let others run between two: a stream may hold megabytes."""
    chunk: list[bytes] = []
    size = 0
    for piece in pieces:
        chunk.append(piece)
        size += len(piece)
        if size >= 65_536:
            yield b"".join(chunk)
            chunk, size = [], 0
            give_way()
    yield b"".join(chunk)


def _cancel(hub: Hub, sid: str) -> list[str]:
    mid = _cancelled_mid()
    channel = hub.channels.get(sid)
    if channel is None or (mid is not None and mid not in channel.stream.messages):
        raise Refused("not_found", "there is no such stream, or no such message in it")
    return hub.cancel(channel, mid)


def _cancelled_mid() -> str | None:
    """The message that the body names, if it names one."""
    try:
        body = read_whole(request.environ, MAX_CANCEL, CANCEL_TIMEOUT)
    except BrokenBody as error:
        raise Refused("bad_request", error.reason) from error
    if not body.strip():
        return None
    if not request.is_json:
        raise Refused("unsupported_media_type", "the body is JSON: send Content-Type: application/json")
    try:
        members = decode_json(body)
    except ValueError as error:
        raise Refused("bad_request", str(error)) from error
    mid = members.get("mid") if isinstance(members, dict) else False
    if mid is not None and not is_mid(mid):
        raise Refused("bad_request", "the body is an object; its `mid`, if there, a message id")
    return mid
