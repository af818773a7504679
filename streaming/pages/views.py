"""The built-in route: `GET /pages/<path>` renders `<path>.html` from the records of `<backend>/<path>`.

Registered when STREAMING_BACKEND_URL and STREAMING_TEMPLATE_FOLDER are set. Source: docs/pages.md, "Built-in route".
"""

from __future__ import annotations

import os

from flask import Blueprint, Response, request
from werkzeug.security import safe_join

from ..errors import TemplateMissing
from .failures import count_refused, error_response
from .response import stream_page
from .sources import Backend, raw_suffix


def pages_blueprint(backend_url: str, template_folder: str) -> Blueprint:
    """Make the blueprint for one app.

    Args:
        backend_url: where records come from; a path in it is kept in front.
        template_folder: the only folder whose templates this route serves.
    """
    blueprint = Blueprint("pages", __name__, template_folder=template_folder)

    @blueprint.get("/pages/<path:path>", merge_slashes=False)
    def page(path: str) -> Response:
        """Stream one page."""
        if not is_page(template_folder, path):
            missing = TemplateMissing("there is no such page")
            count_refused(missing)
            return error_response(missing)
        url = f"{backend_url.rstrip('/')}/{raw_suffix(request.environ, path)}"
        return stream_page(f"{path}.html", Backend(url), template_folder)

    return blueprint


def is_page(folder: str, path: str) -> bool:
    """Whether `<path>.html` is a file in `folder`, named plainly: no `..`, no backslash, no NUL, no empty segment."""
    if "\\" in path or "\0" in path or any(part in ("", ".", "..") for part in path.split("/")):
        return False
    file = safe_join(folder, f"{path}.html")
    return file is not None and os.path.isfile(file)
