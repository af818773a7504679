"""What is said of a page that failed: to the client before its commit, in the log, in the counts."""

from __future__ import annotations

import logging
import textwrap

from flask import Response
from jinja2 import TemplateSyntaxError

from ..errors import Aborted, Busy, PageError, RenderError
from ..protocol.jsontext import show
from ..state import current_state

log = logging.getLogger("streaming.pages")


def error_response(error: PageError) -> Response:
    """The answer to a page that failed before its commit: one line of text."""
    response = Response(f"{error}\n", status=error.status, content_type="text/plain; charset=utf-8")
    response.headers["Cache-Control"] = "no-store"
    if isinstance(error, Busy):
        response.headers["Retry-After"] = str(error.retry_after)
    return response


def count_refused(error: PageError) -> None:
    """Count a page that was refused before it was made; others are counted when they close."""
    state = current_state()
    if not state.is_own_thread:  # another server's, which has no pages
        return
    counts = state.shared.counts
    counts.outcomes[error.outcome] += 1
    if error.limit is not None:
        counts.limits[error.limit] += 1


def log_failure(route: str, error: PageError, *, is_committed: bool) -> None:
    """Log a failed page, once, with its route, record and cause. Not in a callback of the hub."""
    outcome = "cut" if is_committed else f"answered {error.status}"
    if isinstance(error, RenderError):
        details = textwrap.indent(_escape(error.details), "    | ")
        log.error("%s: %s, %s: %s\n%s", route, outcome, error, _describe(error.__cause__), details.rstrip())
    elif isinstance(error, Aborted) and error.said:
        log.warning("%s: %s, %s: %s", route, outcome, error, show(error.said))
    else:
        log.warning("%s: %s, %s", route, outcome, error)


def _describe(cause: BaseException | None) -> str:
    """What a template or an iterable raised, on one line: it may quote what came from outside."""
    text = f"{cause.name}:{cause.lineno}: {cause.message}" if isinstance(cause, TemplateSyntaxError) else str(cause)
    return _escape(text[:300]).replace("\n", "\\n")


def _escape(text: str) -> str:
    """Text without control characters; only its line ends are left."""
    return "\n".join(line.encode("unicode_escape").decode("ascii") for line in text.split("\n"))
