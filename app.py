"""Composition root: `python app.py`, or `gunicorn -c gunicorn.conf.py app:app`."""

from gevent import monkey

monkey.patch_all()

import logging
import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from flask import Blueprint, Flask

from streaming import Streaming
from streaming.errors import SettingsError

streaming = Streaming()


def create_app(config: Mapping[str, Any] | None = None, blueprints: Iterable[Blueprint] = ()) -> Flask:
    """Make the app.

    Args:
        config: Flask's and STREAMING_* settings; they win over the environment's STREAMING_* variables.
        blueprints: the blueprints of your own to register.

    Raises:
        SettingsError: a setting is wrong; the message names its key.
    """
    app = Flask(__name__)
    app.config.update({key: value for key, value in os.environ.items() if key.startswith("STREAMING_")})
    app.config.update(config or {})
    streaming.init_app(app)
    for blueprint in blueprints:
        app.register_blueprint(blueprint)
    return app


def main(blueprints: Iterable[Blueprint] = ()) -> None:
    """Serve on HOST and PORT of the environment (127.0.0.1:8000) until SIGTERM or Ctrl-C."""
    from streaming.server import serve

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    port = os.environ.get("PORT", "8000")
    if not port.isdecimal() or int(port) > 65_535:
        sys.exit(f"PORT is {port!r}, not a port number")
    try:
        app = create_app(blueprints=blueprints)
    except SettingsError as error:
        sys.exit(f"settings: {error}")
    serve(app, os.environ.get("HOST", "127.0.0.1"), int(port))


def __getattr__(name: str) -> Any:
    """Make `app` when a server asks for it: importing this module makes none and reads no settings."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault("app", create_app())


if __name__ == "__main__":
    main()
