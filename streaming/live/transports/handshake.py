"""WebSocket's opening handshake. Source: RFC 6455; sections below are its own. gevent-websocket gives the GUID.

The app has decided before it comes to this: origin and authorisation are not judged here.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from geventwebsocket.handler import WebSocketHandler

VERSION = "13"
UPGRADE = (("Upgrade", "websocket"), ("Connection", "Upgrade"))


class HandshakeError(Exception):
    """The request can't be upgraded.

    Attributes:
        status: of the HTTP answer.
        message: one line for the client; nothing in it came from the client.
        headers: to be sent with the answer.
    """

    def __init__(self, status: int, message: str, headers: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(status, message)
        self.status = status
        self.message = message
        self.headers = list(headers)

    def __str__(self) -> str:
        return f"{self.status}: {self.message}"


def handshake(environ: Mapping[str, Any], subprotocols: Sequence[str] = ("headrace.v1",)) -> list[tuple[str, str]]:
    """Check an upgrade request (4.2.1) and return the headers of the 101 answer (4.2.2).

    Origin and authorisation are for the app to judge.

    Args:
        environ: the request's WSGI environ.
        subprotocols: those we speak, best first; the first that was asked for is named in the answer.

    Raises:
        HandshakeError: 400 or 426.
    """
    if environ.get("REQUEST_METHOD") != "GET" or environ.get("SERVER_PROTOCOL") != "HTTP/1.1":
        raise HandshakeError(400, "a WebSocket begins with a GET of HTTP/1.1")
    upgrades = [item.lower() for item in _items(environ, "HTTP_UPGRADE")]
    options = [item.lower() for item in _items(environ, "HTTP_CONNECTION")]
    if "websocket" not in upgrades or "upgrade" not in options:
        raise HandshakeError(426, "not a WebSocket upgrade", UPGRADE)
    if _value(environ, "HTTP_SEC_WEBSOCKET_VERSION") != VERSION:
        headers = [*UPGRADE, ("Sec-WebSocket-Version", VERSION)]  # RFC 9110 section 15.5.22 wants Upgrade with a 426
        raise HandshakeError(426, f"only version {VERSION} of WebSocket is spoken here", headers)
    key = _value(environ, "HTTP_SEC_WEBSOCKET_KEY")
    if not _is_key(key):
        raise HandshakeError(400, "Sec-WebSocket-Key is not 16 bytes in base64")
    headers = [*UPGRADE, ("Sec-WebSocket-Accept", _accept(key))]
    asked = _items(environ, "HTTP_SEC_WEBSOCKET_PROTOCOL")
    spoken = next((name for name in subprotocols if name in asked), None)
    if spoken is not None:
        headers.append(("Sec-WebSocket-Protocol", spoken))
    return headers


def _value(environ: Mapping[str, Any], name: str) -> str:
    """A header without the blanks around it; empty when there is none."""
    return str(environ.get(name, "")).strip(" \t")


def _items(environ: Mapping[str, Any], name: str) -> list[str]:
    """The items of a header that is a list; servers join repeated headers with commas."""
    return [item.strip(" \t") for item in _value(environ, name).split(",")]


def _is_key(key: str) -> bool:
    try:
        return len(binascii.a2b_base64(key, strict_mode=True)) == 16
    except ValueError:  # also for what is not ASCII
        return False


def _accept(key: str) -> str:
    """Prove to the client that its key was read (4.2.2); no secret hangs on the digest."""
    digest = hashlib.sha1((key + WebSocketHandler.GUID).encode(), usedforsecurity=False).digest()
    return base64.b64encode(digest).decode()
