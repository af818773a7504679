"""Shows what a connection costs that waits: memory, processor time for heartbeats, and what comes back in the end.

Clients, processes of their own on raw sockets, connect and subscribe to one stream each, in which nothing happens. Each
row is a new server process. 50 connections come and go first, for what a process makes once.

How to read it. "a connection" is the server's resident memory above that before them, through their number: as it is
when all are subscribed, and after a garbage collection ("collected"). All subscribe to the same stream, or with "a
stream each" to one of their own, whose memory then counts too. "kernel slabs" are the system's sockets and descriptors,
not part of the process's memory; they are for both ends of a connection, since both are here, and the whole machine's,
so others disturb them.

"CPU idle" is the server's processor time while nothing happens but heartbeats, in per cent of a core, "per 1,000" the
same for 1,000 connections. It is taken over two intervals of STREAMING_PING_INTERVAL (the default of 15 s; with --quick
it is 2 s). A WebSocket's client answers its heartbeats; "beats" says how many came.

When all have left, and their streams are forgotten (STREAMING_IDLE_TTL is 4 s here, not 600): "freed" is the share of
the objects that they had made and that are gone. "returned" is the share of the memory that has gone back to the
system, as it is and after the C library was told to give back what it holds ("trimmed"). Python gives memory back by
the megabyte, once nothing in it is used, and that is rare. The process can use it again: "second time" is what as many
connections once more add to the first time's peak. A leak would show there.

The largest number is as many as one process may have descriptors for, at most 20,000; the output says what ended it.
Each client process uses several source addresses, 127.0.0.1 and so on: one pair of addresses has about 28,000 ports.
The public figures are as others have published them, for one WebSocket; they were not measured here.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.live import LiveServer, Readers, bottleneck, wait_until
from benchmarks.report import Progress, command_line, machine, plot, save, table, verdict

KIB = 1_024
REQUIRED, GOAL = 12.0, 4.0  # KiB a connection
MOST = 20_000  # connections, to bound the time
RESERVE = 100  # descriptors of a process for anything else
WARM_UP = 50
A_PROCESS = 10_000  # clients
AT_ONCE = 500  # connections between two looks at heartbeats
PUBLIC = {"Centrifugo": "27 KB, 10.9 KB tuned", "AnyCable": "34 KB", "uWebSockets": "5 KB"}
PAGE = resource.getpagesize()


@dataclass(frozen=True)
class Case:
    """So many connections on one carrier."""

    carrier: str
    count: int
    has_own_streams: bool = False

    @property
    def title(self) -> str:
        """How tables call it."""
        return f"{self.carrier}, a stream each" if self.has_own_streams else self.carrier


@dataclass
class Result:
    """What one case took, in bytes and seconds.

    Attributes:
        before: resident memory of the server without connections; the next is with all of them.
        collected: after a garbage collection; so the next two.
        again: when all have left and as many have come once more.
        left: when all have left, and after the C library was told to give back what it holds.
        freed: share of the objects made meanwhile that are gone then.
        slab: of the kernel, for both ends.
        pages: of the kernel, for bytes in flight.
        seconds: for connecting.
    """

    case: Case
    before: int
    connected: int
    collected: int
    again: int
    left: tuple[int, int]
    freed: float
    slab: int
    pages: int
    seconds: float
    idle: float
    cpu: float
    beats: int
    bottleneck: str

    @property
    def each(self) -> float:
        """KiB of resident memory a connection, after a garbage collection."""
        return (self.collected - self.before) / self.case.count / KIB

    def share_returned(self, left: int) -> float:
        """The share of the memory that is not there any more."""
        return (self.collected - left) / (self.collected - self.before)

    def kib(self, count: float) -> str:
        """Bytes for a connection."""
        return f"{count / self.case.count / KIB:.2f} KiB"


def limit() -> tuple[int, str]:
    """How many connections one process can have here, and what ends it."""
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[1] - RESERVE
    return min(
        (descriptors, f"the hard limit of descriptors, {descriptors + RESERVE:,}, less {RESERVE} for other use"),
        (MOST, f"this benchmark's own bound of {MOST:,}"),
    )


def kernel() -> tuple[int, int]:
    """Bytes of the kernel's slabs, and of its pages for TCP, of the whole machine."""
    slab = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("Slab:"))
    sockets = next(line for line in Path("/proc/net/sockstat").read_text().splitlines() if line.startswith("TCP:"))
    return int(slab.split()[1]) * KIB, int(sockets.split()[-1]) * PAGE


class Clients:
    """Client processes, for as many connections as a case needs."""

    def __init__(self, server: LiveServer, case: Case) -> None:
        self._server = server
        self._case = case
        self._processes = [Readers(server, case.carrier) for _ in range(0, case.count, A_PROCESS)]

    def connect(self, count: int) -> None:
        """Connect, and wait until all have what they get at first."""
        sids = [f"idle-{number}" if self._case.has_own_streams else "idle" for number in range(count)]
        for first in range(0, count, AT_ONCE):
            self._processes[first // A_PROCESS].connect(sids[first : first + AT_ONCE])
        got = 0

        def is_quiet() -> bool:
            nonlocal got
            before, got = got, self._server.usage()["messages"]
            return bool(got == before and self._server.usage()["connections"] == count)

        wait_until(is_quiet, f"{count} connections", 60)
        self.messages()

    def disconnect(self) -> None:
        """Close all, and wait until the server has seen it and has forgotten their streams."""
        for process in self._processes:
            process.disconnect()
        wait_until(lambda: self._server.usage()["connections"] == 0, "all connections to end", 60)
        wait_until(lambda: self._server.usage()["streams"] == 0, "all streams to be forgotten", 60)

    def messages(self) -> int:
        """Messages that have come since the last call; RuntimeError if a connection has ended."""
        reports = [process.report() for process in self._processes]
        if any(report["closed"] for report in reports):
            raise RuntimeError("the server has ended an idle connection")
        return sum(report["messages"] for report in reports)

    def cpu(self) -> float:
        """Seconds of processor time that they have used."""
        return sum(process.cpu() for process in self._processes)

    def close(self) -> None:
        """End them."""
        for process in self._processes:
            process.close()


def run(case: Case, ping_interval: float, idle_ttl: float) -> Result:
    """Measure one case, in a new server."""
    server = LiveServer(STREAMING_PING_INTERVAL=str(ping_interval), STREAMING_IDLE_TTL=str(idle_ttl))
    clients = Clients(server, case)
    try:
        clients.connect(WARM_UP)
        clients.disconnect()
        before, objects, slab, pages = _collected(server), server.usage()["blocks"], *kernel()
        began, server_cpu, clients_cpu = time.monotonic(), server.cpu(), clients.cpu()
        clients.connect(case.count)
        seconds = time.monotonic() - began
        side = bottleneck(server.cpu() - server_cpu, clients.cpu() - clients_cpu, seconds)
        connected = server.usage()["resident"]
        slab, pages = (now - then for now, then in zip(kernel(), (slab, pages), strict=True))
        collected, most = _collected(server), server.usage()["blocks"]
        idle, cpu, beats = _idle(server, clients, 2 * ping_interval)
        clients.disconnect()
        left = _collected(server), _collected(server, trim=True)
        freed = (most - server.usage()["blocks"]) / (most - objects)
        clients.connect(case.count)
        again = _collected(server)
    finally:
        clients.close()
        server.close()
    return Result(case, before, connected, collected, again, left, freed, slab, pages, seconds, idle, cpu, beats, side)


def _collected(server: LiveServer, trim: bool = False) -> int:
    """Resident memory after a garbage collection."""
    server.ask("POST", "/bench/collect", {"trim": trim})
    return int(server.usage()["resident"])


def _idle(server: LiveServer, clients: Clients, seconds: float) -> tuple[float, float, int]:
    """Wait; seconds that it took, the server's processor time in them, heartbeats that came."""
    clients.messages()
    began, cpu = time.monotonic(), server.cpu()
    time.sleep(seconds)
    took, cpu = time.monotonic() - began, server.cpu() - cpu
    return took, cpu, clients.messages()


# -- showing it


def figures_table(results: Sequence[Result]) -> str:
    """Memory of all cases."""
    headers = ["carrier", "connections", "a connection", "collected", "kernel slabs", "freed", "returned", "trimmed"]
    rows = []
    for one in results:
        row = [one.case.title, f"{one.case.count:,}", one.kib(one.connected - one.before)]
        row += [one.kib(one.collected - one.before), one.kib(one.slab), f"{one.freed:.1%}"]
        row += [f"{one.share_returned(left):.0%}" for left in one.left]
        rows.append([*row, one.kib(one.again - one.collected)])
    return table("Memory", [*headers, "second time"], rows)


def time_table(results: Sequence[Result]) -> str:
    """Processor time of all cases."""
    rows = []
    for one in results:
        share = one.cpu / one.idle
        row = [one.case.title, f"{one.case.count:,}", f"{one.seconds:.1f} s", f"{share:.2%}"]
        row += [
            f"{share / one.case.count * 1_000:.2%}",
            f"{one.beats:,}",
            f"{one.cpu / max(1, one.beats) * 1e6:.0f} us",
        ]
        rows.append([*row, one.bottleneck])
    headers = ["carrier", "connections", "connecting", "CPU idle", "per 1,000", "beats", "CPU a beat"]
    return table("Processor time, idle", [*headers, "bottleneck while connecting"], rows)


def bounds_table(results: Sequence[Result]) -> str:
    """What is required, and what others need."""
    bounds = [f"<= {REQUIRED:g} KiB", f"<= {GOAL:g} KiB"]
    rows = [
        [f"{one.case.title}, {one.case.count:,}", f"{one.each:.2f} KiB", *bounds, verdict(one.each, REQUIRED, GOAL)]
        for one in results
    ]
    rows += [[f"{name}, as published", figure, "", "", ""] for name, figure in PUBLIC.items()]
    title = "Required: resident memory a connection, collected"
    return table(title, ["connections", "here", "required", "goal", "verdict"], rows)


def draw_memory(results: Sequence[Result], axis: Any) -> None:
    """Memory a connection against their number."""
    for title in dict.fromkeys(one.case.title for one in results):
        points = [(one.case.count, one.each) for one in results if one.case.title == title]
        axis.plot(*zip(*points, strict=True), "o" if len(points) == 1 else "o-", label=title)
        place = -12 if title.startswith("sse") else 5
        for point in points:
            label = f"{point[1]:.2f}"
            axis.annotate(label, point, (0, place), textcoords="offset points", fontsize=7, ha="center")
    axis.axhline(REQUIRED, color="tab:red", linestyle="--", label=f"required {REQUIRED:g}")
    axis.axhline(GOAL, color="tab:green", linestyle="--", label=f"goal {GOAL:g}")
    axis.set_ylim(0, REQUIRED * 1.1)
    axis.margins(x=0.1)
    axis.set_xlabel("idle connections")
    axis.set_ylabel("KiB of resident memory a connection")
    axis.set_title("Memory (lower is better)", fontsize=10)
    axis.legend(fontsize=8, loc="upper right", bbox_to_anchor=(1, 0.9))


def draw_moments(results: Sequence[Result], axis: Any) -> None:
    """Memory at each moment, of the largest cases."""
    names = ["before", "connected", "collected", "all left", "trimmed", "second time"]
    most = max(one.case.count for one in results)
    for one in results:
        if one.case.count == most:
            moments = [one.before, one.connected, one.collected, *one.left, one.again]
            above = [(moment - one.before) / KIB / KIB for moment in moments]
            axis.plot(names, above, "o-", label=f"{one.case.title}, {most:,}")
    axis.set_ylabel("MiB of resident memory above before")
    axis.tick_params(axis="x", labelsize=8)
    axis.set_title("The server's memory, moment by moment", fontsize=10)
    axis.legend(fontsize=8)


def draw_time(results: Sequence[Result], axis: Any) -> None:
    """Processor time against the number of connections."""
    for title in dict.fromkeys(one.case.title for one in results):
        points = [(one.case.count, one.cpu / one.idle * 100) for one in results if one.case.title == title]
        axis.plot(*zip(*points, strict=True), "o" if len(points) == 1 else "o-", label=title)
    axis.set_ylim(bottom=0)
    axis.set_xlabel("idle connections")
    axis.set_ylabel("per cent of a core")
    axis.set_title("Processor time of heartbeats (lower is better)", fontsize=10)
    axis.legend(fontsize=8)


def main() -> None:
    """Run it."""
    options = command_line(__doc__).parse_args()
    largest, reason = limit()
    counts = (1_000,) if options.quick else (1_000, 5_000, largest)
    # A time to live of less than 4 s makes the server look more than once a second.
    ping_interval, idle_ttl = (2, 1) if options.quick else (15, 4)
    cases = [Case(carrier, count) for carrier in ("websocket", "sse") for count in counts]
    both = ("websocket",) if options.quick else ("websocket", "sse")
    cases += [Case(carrier, counts[len(counts) // 2], has_own_streams=True) for carrier in both]
    progress = Progress(len(cases))
    results = []
    for case in cases:
        progress.step(f"{case.title}, {case.count:,} connections")
        results.append(run(case, ping_interval, idle_ttl))
    progress.end()
    print(f"idle{' (quick: too few connections for figures to quote)' if options.quick else ''}")
    print(machine())
    print(f"The most here is {largest:,} connections: {reason}. Heartbeats each {ping_interval} s.")
    print(figures_table(results))
    print(time_table(results))
    print(bounds_table(results))
    pages = max(results, key=lambda one: one.pages)
    print(f"The kernel's pages for bytes in flight on TCP: at most {pages.kib(pages.pages)} more a connection.")
    document = [vars(one) | {"case": vars(one.case), "kib_each": one.each} for one in results]
    save("idle", {"is_quick": options.quick, "most": largest, "limit": reason, "results": document, "public": PUBLIC})
    panels = [partial(draw, results) for draw in (draw_memory, draw_moments, draw_time)]
    plot("idle", "What idle connections cost the server", panels)


if __name__ == "__main__":
    main()
