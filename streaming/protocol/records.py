"""Cutting a backend's bytes into records. Source: docs/pages.md, "Records".

Theory of operation. Bytes come in slices of any size; records go out whole. A slice without a line feed is copied to
the end of one growing buffer and is not looked at again, so the work is linear in the bytes however they are sliced,
and one-byte slices cost no more memory than large ones. Between two records the buffer does not exist.

Both limits are judged on what is here already: a record that can only be too long is refused without waiting for its
line feed.
"""

from __future__ import annotations

from ..errors import RecordError

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class RecordSplitter:
    """Turns slices of bytes into records: lines without their line feed and without one trailing carriage return.

    Empty lines are heartbeats: they are dropped and not numbered. A byte order mark at the very start is dropped; it
    and the carriage return count toward the record's size.

    Args:
        max_record: bytes that one record may have, without its line feed.
        max_total: bytes that all records may have together.

    Attributes:
        count: how many records have come out; so also the number of the next one.
        failure: the limit that was passed, once one was. Records that were complete before it are still returned;
            nothing comes out after it.
    """

    __slots__ = ("_at_start", "_max_record", "_max_total", "_partial", "_total", "count", "failure")

    def __init__(self, max_record: int, max_total: int) -> None:
        self._max_record = max_record
        self._max_total = max_total
        self._partial: bytearray | None = None
        self._total = 0
        self._at_start = True
        self.count = 0
        self.failure: RecordError | None = None

    def feed(self, data: bytes | bytearray | memoryview) -> list[bytes]:
        """Take the next slice and return the records that it completes; look at `failure` afterwards."""
        if self.failure is not None:
            return []
        lines = bytes(data).split(b"\n")
        rest = lines.pop()
        records: list[bytes] = []
        for line in lines:
            if not line and self._partial is None:  # a heartbeat; there can be tens of thousands in a slice
                self._at_start = False
                continue
            record = self._complete(line)
            if self.failure is not None:
                return records
            if record:
                records.append(record)
        self._keep(rest)
        return records

    def finish(self) -> list[bytes]:
        """Return the last record, if the bytes ended without a line feed. Call once, after a clean end."""
        if self.failure is not None or self._partial is None:
            return []
        record = self._complete(b"")
        return [record] if record else []

    def _complete(self, line: bytes) -> bytes:
        """Join `line` to what was kept, check it, and return the record; empty for a heartbeat."""
        if self._partial is not None:
            self._partial += line
            line = bytes(self._partial)
            self._partial = None
        size = len(line)
        if not self._fits(size, line == b"\r"):
            return b""
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(BYTE_ORDER_MARK)
        line = line.removesuffix(b"\r")
        if not line:
            return b""
        self._total += size
        self.count += 1
        return line

    def _keep(self, rest: bytes) -> None:
        if not rest:
            return
        if self._partial is None:
            self._partial = bytearray()
        if self._fits(len(self._partial) + len(rest), not self._partial and rest == b"\r"):
            self._partial += rest

    def _fits(self, size: int, is_return: bool) -> bool:
        """Check both limits; a lone carriage return may be a heartbeat, which counts toward no total."""
        if size > self._max_record:
            self.failure = RecordError(f"longer than {self._max_record} bytes", self.count, limit="max_record")
        elif self._total + size > self._max_total and not is_return:
            reason = f"all records together are longer than {self._max_total} bytes"
            self.failure = RecordError(reason, self.count, limit="max_page_records")
        else:
            return True
        self._partial = None
        return False
