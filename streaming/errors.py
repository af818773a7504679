"""What can go wrong, as one tree. Who is at fault is the type; what the client is told is `.status`.

::

    SettingsError            a STREAMING_* key: the operator. Raised at start.
    PageError                a page could not be rendered, or not to its end
     ├─ TemplateMissing      404  the built-in route has no such template: the client
     ├─ RenderError          500  a template, or the app's own iterable: the app
     ├─ BackendError         502  the backend, or the network to it
     │   ├─ RecordError      502  a record: too long, not JSON, of a wrong shape, in a wrong place
     │   └─ Aborted          502  the backend said so itself
     ├─ Busy                 503  too many pages, or no render slot in time: nobody
     └─ BackendTimeout       504  the backend was silent
    Cut                      ends a response that has begun: an `OSError`, so that servers close without a traceback
    Refused                  4xx, 5xx: a request of the live routes, or a client's frame; `.code` says why
    ProducerError            a message can't take what its producer wants to add: the producer
     ├─ Cancelled            not its fault: somebody pressed stop, or nobody watched
     ├─ MessageEnded         it has ended
     └─ MessageTooLong       it would pass STREAMING_MAX_MESSAGE

A `PageError` before the commit is the response's status; after it, the response is cut (docs/pages.md, "Failures").
"""

from __future__ import annotations

import errno
import traceback
from collections.abc import Iterable
from types import FrameType, TracebackType


class SettingsError(ValueError):
    """A setting is unknown, of the wrong type, or contradicts another one; the message names the key."""


class PageError(Exception):
    """A page failed.

    Attributes:
        status: the HTTP status, used while nothing has been sent.
        outcome: how a page that ends by it is counted.
        record: number of the record being handled, from 0; None where no record is involved.
        reason: one line for the client and the log; never template source or a traceback.
        limit: the setting whose bound was passed, in lower case and without its prefix; None for other failures.
    """

    status = 500
    outcome: str

    def __init__(self, reason: str, record: int | None = None, *, limit: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.record = record
        self.limit = limit

    def settle(self) -> None:
        """Let go of all frames of the tracebacks, since they hold records and state.

        To be called where the error was caught, once; in a render thread for what failed there.
        """
        error: BaseException | None = self
        seen: set[int] = set()  # an app can make an exception its own cause
        while error is not None and id(error) not in seen:
            seen.add(id(error))
            _clear_frames(error.__traceback__)
            error.__traceback__ = None
            error = error.__cause__ or error.__context__

    def __str__(self) -> str:
        return self.reason if self.record is None else f"record {self.record}: {self.reason}"


def _clear_frames(found: TracebackType | None) -> None:
    """Clear the frames of a traceback, and those behind them: Jinja's rewritten ones hold each other in a cycle."""
    while found is not None:
        frame: FrameType | None = found.tb_frame
        while frame is not None:
            try:
                frame.clear()
            except RuntimeError:  # it runs, and so do all behind it
                break
            frame = frame.f_back
        found = found.tb_next


class TemplateMissing(PageError):
    """The built-in route was asked for a page that has no template."""

    status = 404
    outcome = "no_template"


class RenderError(PageError):
    """A template failed, or an iterable of the app did; `__cause__` is what it raised.

    Attributes:
        details: the cause's traceback as text, for the log.
    """

    outcome = "render_failed"
    details = ""

    def settle(self) -> None:
        """Keep the cause's traceback as text, and let go of its frames."""
        if self.__cause__ is not None:
            self.details = "".join(traceback.format_exception(self.__cause__))
        super().settle()


class BackendError(PageError):
    """The backend could not be reached, answered wrongly, or broke off."""

    status = 502
    outcome = "backend_failed"


class RecordError(BackendError):
    """A record broke a rule of docs/pages.md; `record` is its number."""


class Aborted(BackendError):
    """The backend sent an `abort` record; what it said is for the log alone.

    Attributes:
        said: the record's `message` as it came, or an empty string.
    """

    def __init__(self, said: str, record: int) -> None:
        super().__init__("the backend aborted the page", record)
        self.said = said


class Busy(PageError):
    """The process has as many pages, or as long a line for its render slots, as it was allowed.

    Attributes:
        retry_after: seconds, for the `Retry-After` header.
    """

    status = 503
    outcome = "busy"
    retry_after = 2


class BackendTimeout(PageError):
    """The backend sent nothing for as long as it was allowed to be silent."""

    status = 504
    outcome = "backend_timeout"


class Cut(OSError):
    """Ends a response in the middle of its body.

    It is raised to the WSGI server by the response's iterator. Servers take an `EPIPE` for a client that has gone:
    they close the connection without the last chunk and without a traceback, and HTTP/1.1 clients see a broken body.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(errno.EPIPE, reason)


#: The codes of `Refused`, with the HTTP status of each.
STATUSES = {
    "bad_request": 400,
    "bad_frame": 400,
    "unauthorized": 401,
    "forbidden": 403,
    "not_found": 404,
    "unknown_stream": 404,
    "timeout": 408,
    "cancelled": 409,
    "replaced": 409,
    "too_large": 413,
    "unsupported_media_type": 415,
    "upgrade_required": 426,
    "rate": 429,
    "not_supported": 501,
    "too_many": 503,
    "draining": 503,
}


class Refused(Exception):
    """A request of the live routes, or a frame of a client, was refused; nothing was changed by it.

    Attributes:
        code: one of `STATUSES`; clients see it.
        message: one line for people; nothing that came from outside is in it unescaped.
        details: more members of the JSON answer.
        headers: more headers of the HTTP answer.
    """

    def __init__(
        self, code: str, message: str, details: dict[str, object] | None = None, headers: Iterable[tuple[str, str]] = ()
    ) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message
        self.details = details or {}
        self.headers = list(headers)

    @property
    def status(self) -> int:
        """The status of an HTTP answer."""
        return STATUSES[self.code]

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


class ProducerError(Exception):
    """A message does not take what its producer wants to add."""


class Cancelled(ProducerError):
    """The message was cancelled: a reader pressed stop, or nobody watched for as long as the producer allowed."""


class MessageEnded(ProducerError):
    """The message, or the part, has ended."""


class MessageTooLong(ProducerError):
    """The text would pass STREAMING_MAX_MESSAGE; the message has ended with status `error`."""
