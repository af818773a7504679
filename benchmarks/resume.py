"""Shows what clients have at the end that lose their connection every two seconds while a long text is produced.

A producer in the server appends 10,000 tokens in 60 s, as four messages. Each token is another one and has five
characters: four digits, and one that takes one to four bytes. Clients on each carrier, threads of one other process on
raw sockets, drop their connection every 2 s, are away for up to 0.5 s, and come back with their cursor. Half of the
drops are resets (RST), the others a close in order; half are in the middle of a message, whose first bytes the client
has read and throws away. When all messages have ended, each client's text is compared with the server's own,
`GET /streams/<sid>`.

How to read it. "connections" are all that were made. "away" is the share of the time without one: as much of the text
would a client miss that only gets what is sent while it is connected. "back" is the time from the beginning of a return
to the server's answer in the stream. "delivered" is the share of tokens that are in the clients' texts in the end,
"equal" the number of clients whose text is the server's to the byte. "repeated" counts code points that came though the
client had them, "resets" is how often the server told a client to forget what it has, by reason. "failed" are
connections that did not come about or that the server ended, and frames that do not fit together.

"control" are WebSocket clients that come back with the cursor that they had one drop before. They must be sent text
again, so their "repeated" shows that the count sees it; by the offsets their text is right all the same.

The public figures are for delivery under repeated drops of 2 s, as others have published them; they were not measured
here. A worker that is killed is not part of this.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from benchmarks.live import Droppers, LiveServer, bottleneck
from benchmarks.measure import median, p95
from benchmarks.report import Progress, command_line, grouped_bars, machine, ms, plot, save, table, verdict

SID = "resume"
RATE = 10_000 / 60  # tokens a second
TURNS = 4
EVERY = 2.0  # seconds
CARRIERS = ("websocket", "sse", "ndjson")
CONTROL = "control"
PUBLIC = {"Socket.IO": 0.846, "uWebSockets": 0.870, "AnyCable": 1.0}
TOKEN = re.compile(r"\d{4}[ é→😀]")


class Group:
    """What the clients of one carrier have and counted, added up.

    Args:
        clients: their reports, see `droppers.py`.
        expected: the server's text of each part.
    """

    def __init__(self, clients: Sequence[Mapping[str, Any]], expected: Mapping[str, str]) -> None:
        self.clients = len(clients)
        self.counts: Counter[str] = Counter()
        self.resets: Counter[str] = Counter()
        self.waits = [wait for client in clients for wait in client["waits"]]
        self.away = sum(client["away"] for client in clients)
        self.repeated = sum(client["repeated"] for client in clients)
        self.repeated_events = sum(client["repeated_events"] for client in clients)
        self.equal = sum(client["text"] == expected for client in clients)
        self.track = clients[0]["track"]
        wanted = set(TOKEN.findall("".join(expected.values())))
        had = 0
        for client in clients:
            self.counts.update(client["counts"])
            self.resets.update(client["resets"])
            tokens = TOKEN.findall("".join(client["text"].values()))
            had += len(wanted & set(tokens))
            self.counts["twice"] += len(tokens) - len(set(tokens))
        self.delivered = had / len(wanted) / len(clients)

    @property
    def failed(self) -> int:
        """Connections that failed, and losses of the thread."""
        return self.counts["failed"] + self.counts["lost"]

    def document(self) -> dict[str, Any]:
        """All of it, for the file."""
        kept = {name: value for name, value in vars(self).items() if name not in ("track", "waits")}
        return kept | {"failed": self.failed, "back_median_s": median(self.waits), "back_p95_s": p95(self.waits)}


def measure(clients: int, tokens: int) -> tuple[dict[str, Group], dict[str, Any]]:
    """Run it: the groups by name, and what is common to all."""
    groups = {carrier: {"carrier": carrier, "clients": clients, "is_stale": False} for carrier in CARRIERS}
    groups[CONTROL] = {"carrier": "websocket", "clients": max(1, clients // 5), "is_stale": True}
    server = LiveServer()
    droppers = Droppers(server)
    try:
        limit = 60 + 2 * tokens / RATE
        droppers.start(sid=SID, groups=groups, every=EVERY, ends=TURNS, limit=limit)
        cpu = server.cpu()
        server.produce([SID], rate=RATE, tokens=tokens // TURNS, turns=TURNS, is_numbered=True)
        report = droppers.report()
        cpu = server.cpu() - cpu
        snapshot = server.ask("GET", f"/streams/{SID}")
        usage = server.usage()
    finally:
        droppers.close()
        server.close()
    expected = {str(part["p"]): part["s"] for message in snapshot["messages"] for part in message["parts"]}
    made = TOKEN.findall("".join(expected.values()))
    if len(set(made)) != tokens or any(message["status"] != "complete" for message in snapshot["messages"]):
        raise RuntimeError(f"the server's own text has {len(set(made))} tokens of {tokens}")
    found = {
        name: Group([client for client in report["clients"] if client["group"] == name], expected) for name in groups
    }
    common = {
        "tokens": tokens,
        "seconds": report["seconds"],
        "began": report["began"],
        "text_characters": sum(map(len, expected.values())),
        "text_bytes": sum(len(text.encode()) for text in expected.values()),
        "connections_left": usage["connections"],
        "bottleneck": bottleneck(cpu, report["cpu"], report["seconds"]),
    }
    return found, common


# -- showing it


def groups_table(groups: Mapping[str, Group], seconds: float) -> str:
    """What the clients did, and what they have."""
    headers = [
        "carrier", "clients", "connections", "drops", "by RST", "in a message", "away", "back ms", "p95", "delivered",
        "equal", "repeated", "resets", "failed",
    ]  # fmt: skip
    rows = []
    for name, group in groups.items():
        counts = group.counts
        row = [name, str(group.clients), f"{counts['connections']:,}", f"{counts['drops']:,}", f"{counts['resets']:,}"]
        row += [f"{counts['in_middle']:,}", f"{group.away / seconds / group.clients:.1%}"]
        row += [ms(median(group.waits)), ms(p95(group.waits)), f"{group.delivered:.2%}"]
        row += [f"{group.equal} of {group.clients}", f"{group.repeated:,}", _reasons(group.resets), str(group.failed)]
        rows.append(row)
    return table(f"Clients that drop their connection every {EVERY:g} s", headers, rows)


def _reasons(resets: Counter[str]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in resets.items()) or "0"


def bounds_table(groups: Mapping[str, Group]) -> str:
    """What is required of each carrier."""
    rows = []
    for name in CARRIERS:
        group = groups[name]
        differing = group.clients - group.equal
        twice = group.repeated + group.counts["twice"]
        rows += [
            [f"{name}: delivered", f"{group.delivered:.2%}", "100 %", "100 %", verdict(1 - group.delivered, 0, 0)],
            [f"{name}: texts that differ from the server's", str(differing), "0", "0", verdict(differing, 0, 0)],
            [f"{name}: code points that came twice", f"{twice:,}", "0", "0", verdict(twice, 0, 0)],
        ]
    seen = groups[CONTROL].repeated
    rows.append(["control: the count sees repeats", f"{seen:,}", "> 0", "> 0", "yes" if seen else "NO: count broken"])
    return table("Required", ["what", "here", "required", "goal", "verdict"], rows)


def public_table(groups: Mapping[str, Group]) -> str:
    """Delivery beside the public figures."""
    rows = [[f"here, {name}", f"{groups[name].delivered:.1%}", "measured"] for name in CARRIERS]
    rows += [[name, f"{share:.1%}", "as published"] for name, share in PUBLIC.items()]
    return table("Delivered under repeated drops of 2 s", ["", "delivered", ""], rows)


def draw_delivered(groups: Mapping[str, Group], axis: Any) -> None:
    """Delivery beside the public figures."""
    shares = {name: groups[name].delivered for name in CARRIERS} | PUBLIC
    colours = ["tab:blue"] * len(CARRIERS) + ["lightgrey"] * len(PUBLIC)
    bars = axis.bar([name.replace("S", "\nS") if name == "uWebSockets" else name for name in shares], shares.values())
    for bar, colour in zip(bars, colours, strict=True):
        bar.set_color(colour)
    axis.bar_label(bars, [f"{share:.1%}" for share in shares.values()], fontsize=8, padding=2)
    axis.set_ylim(0.7, 1.03)
    axis.set_ylabel("share of the tokens")
    axis.tick_params(axis="x", labelsize=8)
    axis.set_title("Delivered in the end (grey: as published), axis from 0.7", fontsize=10)


def draw_tracks(groups: Mapping[str, Group], common: Mapping[str, Any], axis: Any) -> None:
    """What one client of each carrier has, over ten seconds in the middle."""
    middle = common["seconds"] / 2
    for number, name in enumerate(CARRIERS):
        points = [(at - common["began"], length) for at, length in groups[name].track]
        shown = [(at, length / 1_000) for at, length in points if middle - 5 <= at <= middle + 5]
        # A gap of more than 0.1 s is a drop: no line across it.
        times: list[float] = []
        lengths: list[float] = []
        for at, length in shown:
            if times and at - times[-1] > 0.1:
                times.append(at)
                lengths.append(float("nan"))
            times.append(at)
            lengths.append(length + number * 2)
        axis.plot(
            times, lengths, ".-", markersize=2, linewidth=1, label=f"{name}, {number * 2:+},000" if number else name
        )
    axis.set_xlabel("seconds")
    axis.set_ylabel("thousands of characters")
    axis.set_title("One client of each carrier: gaps are drops (lines are set apart)", fontsize=10)
    axis.legend(fontsize=8)


def draw_twice(groups: Mapping[str, Group], axis: Any) -> None:
    """Repeated code points for each return."""
    values = {name: group.repeated / max(1, group.counts["connections"]) for name, group in groups.items()}
    title = "Code points sent again, for each connection (lower is better)"
    grouped_bars(axis, title, "code points", list(values), {"": list(values.values())}, log=False)
    axis.set_xlabel("control: comes back with the cursor of one drop before, on purpose")


def main() -> None:
    """Run it."""
    parser = command_line(__doc__)
    parser.add_argument("--clients", type=int, help="on each carrier (20, with --quick 5)")
    options = parser.parse_args()
    clients = options.clients or (5 if options.quick else 20)
    tokens = 2_000 if options.quick else 10_000
    progress = Progress(1)
    progress.step(f"{clients} clients on each carrier, {tokens:,} tokens in {tokens / RATE:.0f} s")
    groups, common = measure(clients, tokens)
    progress.end()
    print(f"resume{' (quick: too few drops for figures to quote)' if options.quick else ''}")
    print(machine())
    print(
        f"{common['tokens']:,} tokens in {tokens / RATE:.0f} s as {TURNS} messages: {common['text_characters']:,} "
        f"characters, {common['text_bytes']:,} bytes. All clients were done after {common['seconds']:.1f} s."
    )
    print(groups_table(groups, common["seconds"]))
    print(bounds_table(groups))
    print(public_table(groups))
    print(f"Bottleneck: {common['bottleneck']}. Connections left in the server: {common['connections_left']}.")
    document = {name: group.document() for name, group in groups.items()}
    save("resume", {"is_quick": options.quick, "every_s": EVERY, **common, "groups": document, "public": PUBLIC})
    panels = [partial(draw_delivered, groups), partial(draw_tracks, groups, common), partial(draw_twice, groups)]
    plot("resume", f"Clients that drop their connection every {EVERY:g} s while a text is produced", panels)


if __name__ == "__main__":
    main()
