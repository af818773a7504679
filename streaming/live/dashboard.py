"""The page `/streams/inspect` and its data: off unless STREAMING_INSPECT is set, and behind the authorizer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from flask import Blueprint, Response

from ..config import Settings
from ..errors import Refused
from ..state import AppState
from .access import Access
from .hub import INSPECT
from .inspection import Sampler

#: Its URLs are relative to its own, since the app may be mounted anywhere.
PAGE = Path(__file__).with_name("inspect.html")
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-cache",
}


def add_dashboard(blueprint: Blueprint, state: AppState, access: Access, follow: Callable[[str], Response]) -> None:
    """Add the routes to the live blueprint.

    Args:
        follow: answers the current request with a stream as server-sent events.
    """

    def make_sampler(settings: Settings) -> Sampler:
        return Sampler(state)

    def check() -> None:
        if not state.settings.inspect:
            raise Refused("not_found", "there is no such page")
        access.check("inspect", INSPECT)

    @blueprint.get("/inspect")
    def inspect() -> Response:
        """What this process does, as a page."""
        check()
        return Response(PAGE.read_bytes(), mimetype="text/html", headers=HEADERS)

    @blueprint.get("/inspect/events")
    def inspect_events() -> Response:
        """The same as server-sent events, a sample a second."""
        check()
        response = follow(INSPECT)
        state.of_process(make_sampler).start()
        return response
