"""Making chunks of pieces, joined or filled into a buffer: a part of `buffers.py`, which says how to read it."""

from __future__ import annotations

import socket
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from time import process_time

from benchmarks.measure import Process, median, p95
from benchmarks.report import Progress, ms, size, table
from pool.buffers import BufferPool
from streaming.pages.renderer import STEP_SIZE
from streaming.pages.writer import PageWriter

MIB = 1_048_576
CHUNK_SIZE = 4_096


def html_pieces(total: int) -> list[str]:
    """Pieces as a template makes them, mostly short, some not ASCII; exactly `total` bytes in UTF-8."""
    pieces: list[str] = []
    left = total
    for number in range(total):
        row = ['<tr class="row"><td>', str(number), "</td><td>", "Zoë &amp; Łukasz", "</td><td>", "…", "</td></tr>\n"]
        used = len("".join(row).encode())
        if used > left:
            break
        pieces += row
        left -= used
    return [*pieces, "." * left]


def joined(pieces: Sequence[str]) -> Iterator[bytes]:
    """Chunks as the product makes them: batches of pieces joined, a step's text joined and encoded."""
    writer = PageWriter(CHUNK_SIZE)
    rest = iter(pieces)
    while batch := list(islice(rest, 64)):
        writer.write("".join(batch))
        if writer.ready_size >= STEP_SIZE:
            yield writer.take(flush=False)
    if last := writer.take(flush=True):
        yield last


class PooledWriter:
    """Fills a lent buffer piece by piece, and hands its content out when it is as long as a chunk should be."""

    def __init__(self, buffers: BufferPool) -> None:
        self._buffers = buffers

    def chunks(self, pieces: Sequence[str]) -> Iterator[bytes]:
        """Chunks of at least the buffer's size; one piece, however large, stays whole."""
        buffer = self._buffers.lend()
        used = 0
        for piece in pieces:
            data = piece.encode()
            end = used + len(data)
            buffer[used:end] = data  # the buffer grows if it must
            used = end
            if used >= CHUNK_SIZE:
                yield bytes(memoryview(buffer)[:used])
                used = 0
        if used:
            yield bytes(memoryview(buffer)[:used])
        self._buffers.give_back(buffer)


Writer = Callable[[Sequence[str]], Iterator[bytes]]
WORKLOADS: Mapping[str, Callable[[], list[str]]] = {
    "mixed HTML, 107,610 bytes": partial(html_pieces, 107_610),
    "page, 2.4 MB": partial(html_pieces, 2_400_000),
    "one write, 1 MiB": lambda: ["x" * MIB],
}
PACED = "the same, client takes 8 MiB/s"


@dataclass(frozen=True)
class Writing:
    """What one writer took for one workload: processor seconds, bytes at the peak, chunks."""

    cpu: list[float]
    held: int
    chunks: int


def measure_writers(repeats: int, paced_repeats: int, progress: Progress) -> dict[str, dict[str, Writing]]:
    """All workloads with both writers, turn by turn; the paced one last."""
    writers: dict[str, Writer] = {"pooled": PooledWriter(BufferPool(CHUNK_SIZE)).chunks, "joined": joined}
    results = {}
    for name, make in WORKLOADS.items():
        progress.step(f"writers, {name}")
        pieces = make()
        results[name] = _compare(writers, pieces, lambda chunks: sum(map(len, chunks)), repeats)
    progress.step(f"writers, {PACED}")
    reader = Process("reader.py", 8 * MIB)
    with socket.create_connection(("127.0.0.1", reader.port)) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
        results[PACED] = _compare(writers, ["x" * MIB], partial(_send, connection), paced_repeats)
    reader.close()
    return results


def _send(connection: socket.socket, chunks: Iterator[bytes]) -> None:
    for chunk in chunks:
        connection.sendall(chunk)
    connection.recv(1)


def _compare(
    writers: Mapping[str, Writer], pieces: Sequence[str], consume: Callable[[Iterator[bytes]], object], repeats: int
) -> dict[str, Writing]:
    outputs = {b"".join(write(pieces)) for write in writers.values()}
    assert len(outputs) == 1, "the writers differ"
    cpu: dict[str, list[float]] = {name: [] for name in writers}
    for _ in range(repeats):
        for name, write in writers.items():
            start = process_time()
            consume(write(pieces))
            cpu[name].append(process_time() - start)
    counts = {name: sum(1 for _ in write(pieces)) for name, write in writers.items()}
    return {name: Writing(cpu[name], _peak(write, pieces), counts[name]) for name, write in writers.items()}


def _peak(write: Writer, pieces: Sequence[str]) -> int:
    """Bytes allocated at the peak while chunks are made and dropped one by one."""
    tracemalloc.start()
    for _ in write(pieces):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def writers_table(results: dict[str, dict[str, Writing]]) -> str:
    """Both writers by workload."""
    rows = []
    for workload, writings in results.items():
        base = median(writings["joined"].cpu)
        for name, writing in writings.items():
            middle = median(writing.cpu)
            figures = [ms(middle), ms(p95(writing.cpu)), f"{middle / base:.2f}", size(writing.held)]
            rows.append([workload, name, *figures, str(writing.chunks)])
    headers = ["workload", "writer", "CPU ms", "p95", "through joined", "held", "chunks"]
    return table("Writer (CPU of the process, medians)", headers, rows)
