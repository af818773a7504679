"""Who may: the origin of a browser's request, the app's authorizer, the ingest token. Source: docs/security.md.

Everything here is asked before anything is made or revealed.
"""

from __future__ import annotations

import hmac
import io
import logging
import marshal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import gevent
from flask import Flask, Request, request

from ..config import normal_origin
from ..errors import Refused
from ..state import AppState
from .hub import Hub

log = logging.getLogger("streaming.live")

Action = str  # "read", "publish", "cancel", "ingest" or "inspect"
Authorizer = Callable[[Action, str], Any]
Handler = Callable[[str, Any], Any]
#: What is allowed where the app has no authorizer; to inspect only because the operator has switched that on.
_OPEN = frozenset({"read", "cancel", "inspect"})


@dataclass(slots=True)
class Rules:
    """What an app decides itself.

    Attributes:
        authorizer: asked for each action on a stream; None allows reading and cancelling, and nothing else.
        handlers: for what clients publish, by kind.
    """

    authorizer: Authorizer | None = None
    handlers: dict[str, Handler] = field(default_factory=dict)


class Access:
    """The rules of one app, applied to requests."""

    def __init__(self, state: AppState, rules: Rules) -> None:
        self._state = state
        self._settings = state.settings
        self.rules = rules

    def check_origin(self, request: Request) -> None:
        """Refuse a browser's request from another site; in the request's context.

        Raises:
            Refused: forbidden.
        """
        origin = request.headers.get("Origin")
        if origin is None:
            if request.method == "POST" and request.headers.get("Sec-Fetch-Site") == "cross-site":
                raise self._foreign("a browser sent this from another site")
            return
        try:
            normal = normal_origin(origin)
        except ValueError as error:
            raise self._foreign("the Origin header is not an origin") from error
        if normal not in self._settings.origins and normal != _own_origin(request):
            raise self._foreign("this origin is not allowed; STREAMING_ORIGINS lists those that are")

    def is_foreign(self, origin: str) -> bool:
        """Whether an Origin header is another site's, of those that are allowed: its pages need CORS headers."""
        try:
            normal = normal_origin(origin)
        except ValueError:
            return False
        return normal in self._settings.origins and normal != _own_origin(request)

    def check(self, action: Action, sid: str) -> None:
        """Ask whether the current request may do this with a stream.

        Raises:
            Refused: forbidden; unauthorized, when a token was needed and is missing or wrong.
        """
        token = self._settings.ingest_token if action == "ingest" else None
        if (token is not None and self._has_token(token)) or self.allows(action, sid):
            return
        if token is not None:
            refusal = self._refusal("unauthorized", "send the ingest token as a bearer token", "ingest_token")
            refusal.headers.append(("WWW-Authenticate", "Bearer"))
            raise refusal
        raise self._refusal("forbidden", f"{action} is not allowed for this stream", "forbidden")

    def _foreign(self, text: str) -> Refused:
        return self._refusal("forbidden", text, "origins")

    def _refusal(self, code: str, text: str, rule: str) -> Refused:
        """Make the error, and count it where there can be streams at all: not in threads of another server."""
        if self._state.is_own_thread:
            self._state.of_process(Hub).counts.refused[rule] += 1
        return Refused(code, text)

    def allows(self, action: Action, sid: str) -> bool:
        """What the authorizer says, in the context of the client's request; without one, `_OPEN`."""
        authorizer = self.rules.authorizer
        return action in _OPEN if authorizer is None else bool(authorizer(action, sid))

    @staticmethod
    def _has_token(token: str) -> bool:
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        is_equal = hmac.compare_digest(given.strip().encode(), token.encode())
        return scheme.lower() == "bearer" and is_equal


def _own_origin(request: Request) -> str | None:
    """The site that the request was sent to, as the client sees it; behind a proxy if the app uses ProxyFix."""
    try:
        return normal_origin(f"{request.scheme}://{request.host}")
    except ValueError:
        return None


class Visitor:
    """The request that a connection began with, for what its client asks later; kept small.

    Args:
        environ: of the request; strings and numbers are kept.
    """

    __slots__ = ("_access", "_app", "_environ")

    def __init__(self, app: Flask, access: Access, environ: Mapping[str, Any]) -> None:
        self._app = app
        self._access = access
        self._environ: bytes | None = None
        if access.rules.authorizer is not None:  # else nothing needs a request
            kept = {key: value for key, value in environ.items() if isinstance(value, str | int) and key[0] != "w"}
            kept |= {key: environ[key] for key in ("wsgi.url_scheme", "wsgi.version") if key in environ}
            self._environ = marshal.dumps(kept)

    def allows(self, action: Action, sid: str) -> bool:
        """Ask the authorizer. May wait, if the authorizer does; one that fails allows nothing, and is logged."""
        if self._environ is None:
            return self._access.allows(action, sid)
        try:
            with self._context():
                return self._access.allows(action, sid)
        except (Exception, gevent.Timeout):
            log.exception("the authorizer failed; nothing was allowed")
            return False

    def publish(self, kind: str, sid: str, data: Any) -> tuple[bool, Any]:
        """Hand what the client publishes to the app's handler. May wait, if the handler does.

        Returns:
            Whether it worked, and what it returned; or what went wrong.
        """
        handler = self._access.rules.handlers.get(kind)
        if handler is None:
            return False, "not_supported"
        try:
            with self._context():
                return True, handler(sid, data)
        except (Exception, gevent.Timeout):
            log.exception("the handler of %s failed", kind)
            return False, "failed"

    def _context(self) -> Any:
        assert self._environ is not None
        empty = {"wsgi.input": io.BytesIO(), "wsgi.errors": io.StringIO()}
        return self._app.request_context({**marshal.loads(self._environ), **empty})
