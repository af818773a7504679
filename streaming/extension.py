"""The Flask extension: settings, the tag, the routes, and `stream_template`.

State is kept under `app.extensions["streaming"]` (`state.py`), never on the extension object, so that one object can
serve several apps.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from flask import Blueprint, Flask, Response

from .config import Settings
from .errors import SettingsError
from .pages.boundary import BoundaryTag
from .pages.response import close_unsent, stream_page
from .pages.sources import Backend
from .pages.views import pages_blueprint
from .state import EXTENSION, AppState


class Streaming:
    """Headrace for a Flask app: `Streaming(app)`, or `Streaming()` and `init_app` in a factory."""

    def __init__(self, app: Flask | None = None) -> None:
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
        app.extensions[EXTENSION] = AppState(app, settings)
        app.jinja_env.add_extension(BoundaryTag)
        app.teardown_request(close_unsent)
        app.register_blueprint(_own_blueprint())
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


def _own_blueprint() -> Blueprint:
    """What every app gets: `/healthz`, and `url_for("streaming.static", filename="page.js")`."""
    blueprint = Blueprint("streaming", __name__, static_folder="static", static_url_path="/streaming")

    @blueprint.get("/healthz")
    def healthz() -> dict[str, str]:
        """The process answers requests."""
        return {"status": "ok"}

    return blueprint
