"""Shows what it costs to send one text to many clients, beside the least that it can cost in this process.

A producer appends 100 tokens a second to each stream; the clients are a process of their own, on raw sockets.
"1 x 1,000" is one stream with a thousand clients, "100 x 10" a hundred streams with ten clients each: so the same
connections and tokens for each client, but a hundred times the tokens to append and to cut.

How to read it. "CPU" is the processor time of the whole server process, producers included, for a million deliveries of
one token to one client. "a message" is the same for each message that left; "bare" is a loop of nothing but
`socket.send`, in the same process, of as many bytes, to the same sockets, at the same times. The two take turns of
three seconds, and "ratio" is the median of their ratios. "again" is bare by bare: how far it is from 1 is the machine's
noise. "delay" is from the moment at which a token should have been appended until a client has it, for the first
clients of each run: it has the wait for the next flush in it, up to 50 ms. "RSS" is the server's memory for each of
its clients.
"""

from __future__ import annotations

import gc
import time
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.live import LiveServer, Readers, bottleneck
from benchmarks.measure import median
from benchmarks.report import Progress, command_line, grouped_bars, machine, ms, plot, save, size, table, verdict

RATE = 100  # tokens a second
FLUSH = 0.05  # seconds: the default
REQUIRED_RATIO, GOAL_RATIO = 1.5, 1.2
READ = 5  # clients that are read frame by frame


@dataclass
class Scene:
    """What one run measured.

    Attributes:
        product, bare, again: seconds of CPU for each message, by turn.
        cpu: seconds for each token and client, by turn.
        memory: bytes for each client.
        delays: median and 99th percentile in seconds, by turn.
        wire: bytes for each token and client.
        side: the bottleneck.
    """

    carrier: str
    streams: int
    clients: int
    product: list[float] = field(default_factory=list)
    bare: list[float] = field(default_factory=list)
    again: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    delays: list[tuple[float, float]] = field(default_factory=list)
    memory: float = 0.0
    wire: float = 0.0
    side: str = ""

    @property
    def name(self) -> str:
        """As it stands in the table."""
        return f"{self.carrier}, {self.streams:,} x {self.clients // self.streams:,}"

    @property
    def ratio(self) -> float:
        """The product's CPU by the bare loop's."""
        return median([one / (a + b) * 2 for one, a, b in zip(self.product, self.bare, self.again, strict=True)])

    @property
    def noise(self) -> float:
        """The bare loop's by the bare loop's."""
        return median([b / a for a, b in zip(self.bare, self.again, strict=True)])


def filler(carrier: str, length: int) -> bytes:
    """A message of `length` bytes on the wire that says nothing: what the bare loop sends."""
    if carrier == "websocket":
        payload = length - (2 if length < 128 else 4)
        head = bytes([0x81, payload]) if payload < 126 else b"\x81\x7e" + payload.to_bytes(2, "big")
        return head + b"[" + b" " * (payload - 2) + b"]"
    body = max(3, length - 4 - len(f"{length:x}"))
    return b"%x\r\n:%b\n\n\r\n" % (body, b" " * (body - 3))


def measure(scene: Scene, turns: int, tokens: int, progress: Progress) -> None:
    """Run one scene."""
    server = LiveServer()
    readers = Readers(server, scene.carrier)
    sids = [f"s{number}" for number in range(scene.streams)]
    server.ask("POST", "/bench/collect")
    before = server.usage()["resident"]
    readers.connect([sids[number % scene.streams] for number in range(scene.clients)], read=READ)
    server.ask("POST", "/bench/collect")
    scene.memory = (server.usage()["resident"] - before) / scene.clients
    for turn in range(turns):
        progress.step(f"{scene.name}, turn {turn + 1}")
        _turn(scene, server, readers, sids, tokens)
    readers.close()
    server.close()


def _turn(scene: Scene, server: LiveServer, readers: Readers, sids: list[str], tokens: int) -> None:
    gc.collect()
    readers.report()
    before = server.usage()
    server.produce(sids, rate=RATE, tokens=tokens)
    time.sleep(tokens / RATE)  # not asking meanwhile: answers cost too
    server.wait(60)
    after, report = server.usage(), readers.report()
    messages, cpu = after["messages"] - before["messages"], after["cpu"] - before["cpu"]
    deliveries = tokens * scene.clients
    scene.product.append(cpu / messages)
    scene.cpu.append(cpu / deliveries)
    scene.delays.append((report["delay_median"], report["delay_p99"]))
    scene.wire = report["bytes"] / deliveries
    scene.side = bottleneck(cpu, report["cpu"], report["seconds"])
    data = filler(scene.carrier, round(report["bytes"] / report["messages"])).decode("latin-1")
    rounds = {"data": data, "rounds": round(tokens / RATE / FLUSH), "interval": FLUSH}
    for found in (scene.bare, scene.again):
        bare = server.ask("POST", "/bench/bare", rounds)
        found.append(bare["cpu"] / bare["messages"])


def report_table(scenes: list[Scene]) -> str:
    """The table that is printed."""
    headers = ["carrier, streams x clients", "CPU s per 10^6", "us a message", "bare", "ratio", "again", "verdict"]
    headers += ["delay ms", "p99", "RSS a client", "bytes a token"]
    rows = []
    for scene in scenes:
        is_judged = scene.clients >= 1_000 and scene.streams == 1
        rows.append(
            [
                scene.name,
                f"{median(scene.cpu) * 1e6:.2f}",
                f"{median(scene.product) * 1e6:.1f}",
                f"{median(scene.bare) * 1e6:.1f}",
                f"{scene.ratio:.2f}",
                f"{scene.noise:.2f}",
                verdict(scene.ratio, REQUIRED_RATIO, GOAL_RATIO) if is_judged else "",
                ms(median([one[0] for one in scene.delays])),
                ms(median([one[1] for one in scene.delays])),
                size(scene.memory) if scene.clients >= 100 else "",
                f"{scene.wire:.1f}",
            ]
        )
    title = f"Fan-out (ratio: required {REQUIRED_RATIO}, goal {GOAL_RATIO}, for one stream to 1,000 clients and more)"
    return table(title, headers, rows)


def draw(scenes: list[Scene]) -> None:
    """Plot what a message costs, and the delays."""

    def cost(axis: Any) -> None:
        series = {
            "product": [median(scene.product) * 1e6 for scene in scenes],
            "bare send": [median(scene.bare) * 1e6 for scene in scenes],
        }
        names = [scene.name.replace(", ", ",\n") for scene in scenes]
        grouped_bars(axis, "CPU for each message (lower is better)", "microseconds, log scale", names, series)
        axis.tick_params(axis="x", labelsize=7)

    def ratio(axis: Any) -> None:
        judged = [scene for scene in scenes if scene.clients >= 100]
        names = [scene.name.replace(", ", ",\n") for scene in judged]
        series = {"ratio": [scene.ratio for scene in judged]}
        grouped_bars(axis, "Product by bare send", "ratio", names, series, log=False)
        axis.axhline(REQUIRED_RATIO, color="tab:red", linestyle="--", label=f"required {REQUIRED_RATIO}")
        axis.axhline(GOAL_RATIO, color="tab:green", linestyle="--", label=f"goal {GOAL_RATIO}")
        axis.tick_params(axis="x", labelsize=7)
        axis.legend(fontsize=8)

    plot("fanout", "One text to many clients", [cost, ratio])


def main() -> None:
    """Run it."""
    options = command_line(__doc__).parse_args()
    turns, tokens = (1, 100) if options.quick else (5, 300)
    sizes = [(1, 1), (1, 100), (1, 1_000), (100, 1_000)]
    scenes = [Scene("websocket", *one) for one in [*sizes, *([] if options.quick else [(1, 5_000)])]]
    scenes += [Scene("sse", *one) for one in sizes[2:]]
    progress = Progress(len(scenes) * turns)
    for scene in scenes:
        measure(scene, turns, tokens, progress)
    progress.end()
    print(f"fanout{' (quick: too few repetitions for figures to quote)' if options.quick else ''}")
    print(machine())
    print(report_table(scenes))
    for scene in scenes:
        print(f"Bottleneck, {scene.name}: {scene.side}.")
    derived = [{"name": one.name, "ratio": one.ratio, "noise": one.noise, **asdict(one)} for one in scenes]
    save("fanout", {"is_quick": options.quick, "scenes": derived})
    draw(scenes)


if __name__ == "__main__":
    main()
