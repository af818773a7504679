"""What operators ask: is it alive, is it ready, what does it do (docs/operations.md)."""

from __future__ import annotations

from flask import Blueprint, Response, request

from .config import Settings
from .errors import Refused
from .live.hub import Hub
from .metrics import IS_SHARED, Reporter
from .state import AppState
from .turns import pulse

#: Seconds of standstill within the last ten after which a process is not ready.
STALL, STALL_WINDOW = 2.0, 10


def operations_blueprint(state: AppState) -> Blueprint:
    """Make the blueprint for one app: `/healthz`, `/readyz`, `/metrics`.

    And `url_for("streaming.static", filename="page.js")`.
    """
    blueprint = Blueprint("streaming", __name__, static_folder="static", static_url_path="/streaming")

    def make_reporter(settings: Settings) -> Reporter:
        return Reporter(state)

    @blueprint.get("/healthz")
    def healthz() -> dict[str, str]:
        """The process answers requests."""
        return {"status": "ok"}

    @blueprint.get("/readyz")
    def readyz() -> tuple[dict[str, object], int]:
        """Whether it should get new clients."""
        checks = readiness(state)
        is_ready = all(found == "ok" for found in checks.values())
        return {"status": "ready" if is_ready else "not ready", "checks": checks}, 200 if is_ready else 503

    @blueprint.get("/metrics")
    def metrics() -> Response:
        """What the process does, for Prometheus."""
        if not state.is_own_thread:
            raise Refused(
                "not_supported", "this server has threads of its own; the metrics are those of a gevent server"
            )
        body, content_type = state.of_process(make_reporter).exposition(request.headers.get("Accept", ""))
        return Response(body, content_type=content_type, headers={"Cache-Control": "no-store"})

    if IS_SHARED:

        @blueprint.before_app_request
        def report() -> None:
            """Begin to report to whoever answers for this process."""
            if state.is_own_thread:
                state.of_process(make_reporter).start()

    return blueprint


def readiness(state: AppState) -> dict[str, str]:
    """What has to hold, each with `ok` or with what is wrong."""
    hub = state.made(Hub)
    gap = pulse().longest(STALL_WINDOW) if state.is_own_thread else 0.0  # another thread has no hub, and needs none
    is_turning = gap < STALL and (hub is None or hub.is_working)
    is_draining = state.is_draining or (hub is not None and hub.is_draining)
    return {
        "hub": "ok" if is_turning else f"stood still for {gap:.1f} s" if gap >= STALL else "a greenlet has died",
        "drain": "the server is restarting" if is_draining else "ok",
        "broker": "ok" if hub is None or hub.is_broker_reachable else "can't be reached",
    }
