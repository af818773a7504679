"""Records of a producer outside the process: one request's body, read and applied as it arrives.

It runs in the request's greenlet until the body ends, or something ends it. That can come from another greenlet: a
reader cancels a message, a newer body of the same producer arrives, the server drains. Whoever it is calls `interrupt`,
which notes why and wakes the greenlet if it waits for bytes; it is not woken anywhere else. A record is applied only
when nothing has been noted, so what interrupts is obeyed at once.

How a body can end, and what then becomes of the messages that it has open:

============================  ======  =========================================================
its proper end                200     `error`; a named producer's stay open for the grace period
broken, or silent             4xx     the same
the server drains             503     `error`, at once
a record is refused           4xx     `error`
a message was cancelled       409     `aborted`
replaced by a newer body      409     they are the newer one's
============================  ======  =========================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gevent

from ..errors import MessageTooLong, ProducerError, Refused
from ..protocol.ingest import BadRecord, IngestCommand, parse_ingest
from ..protocol.records import RecordSplitter
from ..turns import breathe
from .bodies import Body, BrokenBody, open_body
from .hub import Hub
from .producer import FAILED
from .remote import LEFT, RemoteProducer, enter

#: Bytes of a record. A body may go on for ever, so there is no limit for all of them.
MAX_RECORD = 2_000_000
NO_LIMIT = 2**63
#: Bytes of a record that is parsed on the hub, in half a millisecond.
PARSED_HERE = 16_384
#: What readers are told.
BROKE = "the producer's connection broke"
SILENT = "the producer was silent for too long"


def ingest(hub: Hub, sid: str, environ: Mapping[str, Any], producer: str | None) -> dict[str, object]:
    """Apply the records of a request's body to a stream as they arrive. Waits until the body ends.

    Args:
        producer: the name that the producer gave itself.

    Returns:
        The members of the answer, status 200.

    Raises:
        Refused: any other answer. The body need not have come to its end; the connection is then closed behind the
            answer.
    """
    try:
        body = open_body(environ)
    except BrokenBody as error:
        raise Refused("bad_request", error.reason, {"accepted": 0}) from error
    try:
        return Ingest(hub, sid, producer, body).run()
    finally:
        if not body.is_whole:
            body.abandon()


class Ingest:
    """One body that is being read.

    Args:
        name: of its producer.

    Attributes:
        accepted: records that were applied, or had been before; so also the number of the next one.
        code: why it was interrupted; empty while it wasn't.
    """

    def __init__(self, hub: Hub, sid: str, name: str | None, body: Body) -> None:
        self._hub = hub
        self._sid = sid
        self._name = name
        self._body = body
        self._message = ""
        self._waiting: Any = None
        self._alarm: Any = None
        self.accepted = 0
        self.code = ""

    def interrupt(self, code: str, message: str) -> None:
        """End it, with this answer. Does not wait; may be called from any greenlet, and from the hub. Once counts."""
        if self.code:
            return
        self.code = code
        self._message = message
        if self._waiting is not None:
            self._alarm = gevent.get_hub().loop.run_callback(self._waiting.throw, _Interruption())

    def run(self) -> dict[str, object]:
        """Read it to its end; see `ingest`."""
        try:
            producer = enter(self._hub, self._sid, self._name, self)
        except Refused as error:
            error.details = {"accepted": 0, **error.details}
            raise
        self._hub.ingests.add(self)
        try:
            self._read(producer)
            producer.leave(LEFT)
        except Refused as error:
            self._settle(producer, error)
            raise
        except BaseException:  # a fault of ours, or the server ends this greenlet
            if producer.ingest is self:
                producer.end_all("error", FAILED)
                producer.leave(FAILED)
            raise
        finally:
            self._hub.ingests.discard(self)
        channel = self._hub.channels.get(self._sid)
        head = 0 if channel is None else channel.stream.head
        return {"accepted": self.accepted, "seq": head, "mid": producer.last}

    def _settle(self, producer: RemoteProducer, error: Refused) -> None:
        """Decide what becomes of the messages that are open."""
        if producer.ingest is not self:  # replaced: they are not ours any more
            return
        if self.code == "cancelled":
            producer.end_all("aborted")
        elif self.code == "draining":  # nobody comes back to this process
            producer.end_all("error", self._message)
        elif "record" in error.details:
            producer.end_all("error", FAILED)
        producer.leave(SILENT if error.code == "timeout" else BROKE)

    def _read(self, producer: RemoteProducer) -> None:
        splitter = RecordSplitter(MAX_RECORD, NO_LIMIT)
        try:
            while not self._body.is_whole:
                self._apply(producer, splitter.feed(self._next()))
                if splitter.failure is not None:
                    self._hub.counts.refused["ingest_record"] += 1
                    raise self._refuse("too_large", f"the record is longer than {MAX_RECORD} bytes")
            self._apply(producer, splitter.finish())
        except BrokenBody as error:
            raise self._answer("bad_request", error.reason) from error
        self._check()

    # -- bytes

    def _next(self) -> bytes:
        """What comes next; waits for it, for as long as a producer may be silent."""
        self._check()
        silence = gevent.Timeout.start_new(self._hub.settings.producer_timeout)
        self._waiting = gevent.getcurrent()
        try:
            data = self._body.read()
        except _Interruption:
            data = b""
        except gevent.Timeout as timeout:
            if timeout is not silence:
                raise
            raise self._silent() from None
        finally:
            self._waiting = None
            silence.close()
            if self._alarm is not None:
                self._alarm.stop()
        breathe()
        return data

    def _silent(self) -> Refused:
        limit = self._hub.settings.producer_timeout
        text = f"nothing came for {limit:g} s; an empty line now and then keeps the request open"
        return self._hub.refusal("timeout", text, "producer_timeout", {"accepted": self.accepted})

    def _check(self) -> None:
        if self.code:
            raise self._answer(self.code, self._message)

    def _answer(self, code: str, message: str) -> Refused:
        return Refused(code, message, {"accepted": self.accepted})

    # -- records

    def _apply(self, producer: RemoteProducer, records: list[bytes]) -> None:
        for raw in records:
            breathe()
            command = _parse(raw)
            self._check()  # no switch between here and what `apply` does to the stream
            try:
                if isinstance(command, BadRecord):
                    raise command
                is_new = producer.apply(command)
            except BadRecord as error:
                raise self._refuse_bad(error.reason) from error
            except MessageTooLong as error:
                raise self._refuse("too_large", str(error)) from error
            except ProducerError as error:
                raise self._refuse_bad(str(error)) from error
            except Refused as error:
                raise self._refuse(error.code, error.message) from error
            self.accepted += 1
            self._hub.counts.ingested += is_new

    def _refuse_bad(self, message: str) -> Refused:
        self._hub.counts.refused["bad_record"] += 1
        return self._refuse("bad_request", message)

    def _refuse(self, code: str, message: str) -> Refused:
        """Why the next record can't be applied."""
        return Refused(code, message, {"record": self.accepted, "accepted": self.accepted})


def _parse(raw: bytes) -> IngestCommand | BadRecord:
    """Parse a record; a large one in another thread, since that can take longer than the hub may stand still."""
    if len(raw) <= PARSED_HERE:
        return _try_to_parse(raw)
    return gevent.get_hub().threadpool.apply(_try_to_parse, (raw,))  # type: ignore[no-any-return]


def _try_to_parse(raw: bytes) -> IngestCommand | BadRecord:
    """The command, or what is wrong as a value: gevent prints what a thread raises."""
    try:
        return parse_ingest(raw)
    except BadRecord as error:
        return error.with_traceback(None)


class _Interruption(Exception):
    """Wakes a body that waits for bytes; `code` says why."""
