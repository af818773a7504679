"""The Flask extension: settings, the tag, the routes, and `stream_template`.

State is kept under `app.extensions["streaming"]` (`state.py`), never on the extension object, so that one object can
serve several apps.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import gevent
from flask import Flask, Response, current_app

from .config import Settings
from .errors import Refused, SettingsError
from .live.access import Authorizer, Handler, Rules
from .live.hub import Hub
from .live.producer import StreamHandle
from .live.tasks import Producer, from_thread
from .live.views import live_blueprint, live_hub, refusal_response
from .operations import operations_blueprint
from .pages.boundary import BoundaryTag
from .pages.response import close_unsent, stream_page
from .pages.sources import Backend
from .pages.views import pages_blueprint
from .protocol.grammar import is_kind, is_own_kind
from .state import EXTENSION, AppState, current_state
from .turns import breathe

Result = TypeVar("Result")


class Streaming:
    """Headrace for a Flask app: `Streaming(app)`, or `Streaming()` and `init_app` in a factory."""

    def __init__(self, app: Flask | None = None) -> None:
        self._rules = Rules()
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Read the app's STREAMING_* settings, add the `boundary` tag and the routes.

        Raises:
            SettingsError: a setting is wrong; the message names its key.
            RuntimeError: the app has a `Streaming` already.
        """
        if EXTENSION in app.extensions:
            raise RuntimeError("this app has a Streaming already; call init_app once per app")
        settings = Settings.from_mapping(app.config)
        state = app.extensions[EXTENSION] = AppState(app, settings)
        app.jinja_env.add_extension(BoundaryTag)
        app.before_request(breathe)  # the next request may be here already, and the one after it
        app.teardown_request(close_unsent)
        app.register_blueprint(operations_blueprint(state))
        app.register_blueprint(live_blueprint(state, self._rules))
        app.register_error_handler(Refused, refusal_response)
        if settings.backend_url is not None and settings.template_folder is not None:
            folder = os.path.abspath(settings.template_folder)
            if not os.path.isdir(folder):
                raise SettingsError(f"STREAMING_TEMPLATE_FOLDER: {folder} is not a folder")
            app.register_blueprint(pages_blueprint(settings.backend_url, folder))

    def stream_template(self, name: str, records: Backend | Iterable[Any]) -> Response:
        """Answer the current request with a template that is rendered as its records come.

        Call it in a view. It waits until the page is committed, so that a failure before that has a status of its own.

        Args:
            name: a template of the app, with or without `{% boundary %}` tags.
            records: a `Backend`; or an iterable of `bytes`, or of `Start`, `Resume` and `Update`.

        Returns:
            The streaming response. If the page failed before its commit: one line of plain text, with status 500, 502,
            503 or 504 (docs/pages.md, "Failures").

        Raises:
            TypeError: `records` is none of these.
            RuntimeError: the app has no `Streaming`.
        """
        return stream_page(name, records)

    def stream(self, sid: str) -> StreamHandle:
        """The stream to write to: a chat, an agent's run, a job. It is made when something is put into it.

        Call it, and what it returns, in greenlets of the main thread, in an app context.

        Raises:
            ValueError: the id is not of the grammar (docs/live-protocol.md, "Names").
            RuntimeError: there is no app context, or this is another thread; see `from_thread`.
        """
        return StreamHandle(live_hub(current_state()), sid)

    def spawn(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> gevent.Greenlet:
        """Run a producer in a greenlet of its own, in an app context, and return the greenlet.

        If it fails, the failure is logged once and the messages that it left open end with status `error`. On a restart
        it has STREAMING_DRAIN_TIMEOUT to finish. It must not compute for long without appending text: see
        docs/live.md, "Producers that compute".

        Raises:
            RuntimeError: there is no app context, or this is another thread; see `from_thread`.
        """
        hub = live_hub(current_state())
        producer = Producer(hub, current_app._get_current_object(), function, args, kwargs)  # type: ignore[attr-defined]
        producer.start()
        return producer

    def from_thread(self, function: Callable[..., Result], /, *args: Any, **kwargs: Any) -> Result:
        """Call a function in the main thread, in an app context, and return what it returns or raise what it raises.

        For native threads, which must not touch streams themselves. In the main thread it is a plain call.

        Raises:
            RuntimeError: there is no app context; or no stream was used in this process yet.
        """
        hub = current_state().made(Hub)
        if hub is None:
            raise RuntimeError("no stream was used in this process yet: the first use must be in the main thread")
        return from_thread(hub, current_app._get_current_object(), function, args, kwargs)  # type: ignore[attr-defined]

    def authorizer(self, function: Authorizer) -> Authorizer:
        """Decorate the function that says who may: it gets an action and a stream id, and returns true or false.

        The actions are `read`, `publish`, `cancel` and `ingest`; and `inspect`, with the id `inspect`, for the page
        that STREAMING_INSPECT switches on. It runs in the context of the client's request, also for what a WebSocket's
        client asks later, and before anything is made or revealed. Without one, everybody may read, cancel and inspect,
        and nobody publish or ingest.
        """
        self._rules.authorizer = function
        return function

    def on_publish(self, kind: str) -> Callable[[Handler], Handler]:
        """Decorate the function that handles what clients publish of a kind: it gets the stream id and the data.

        What it returns goes back to the client. It runs in the context of the client's request; the client's next
        frame waits for it.

        Raises:
            ValueError: the kind belongs to the protocol, or is not of the grammar.
        """
        if not is_kind(kind) or is_own_kind(kind):
            raise ValueError(f"{kind!r:.80} can't be the kind of an event of an app")

        def register(function: Handler) -> Handler:
            self._rules.handlers[kind] = function
            return function

        return register
