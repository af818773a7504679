"""Shows how many bytes and messages one client gets for an answer, and what the bytes are.

A producer in the server appends tokens of five ASCII characters at a fixed rate to one stream. One client, a process of
its own on a raw socket, counts all bytes that it receives: the head of the HTTP response, the framing, the frames.
The stream's id has four characters.

How to read it. "flush" is STREAMING_FLUSH_INTERVAL, for which text is collected. "x text" is bytes through those of the
text alone. "messages" are WebSocket messages or HTTP chunks between the message's start and its end, "a second" their
number through that time, "most" the largest number in any one second. "rate" is what the producer reached.

"10k / 1k" compares two runs with the same rate and the same flush interval. Ten times the text should be ten times the
bytes; who sends the whole text again with each message comes near 100. Without --quick both run at 100 tokens a second
with default settings. With --quick they run at 1,000 tokens a second and a flush interval of 5 ms instead of 50, so
each message has as many tokens. Messages a second are always taken at 100 tokens a second and default settings.

"deltas=0" is the carrier for clients that can't fold deltas: whole texts, each 250 ms at any flush interval. Its bytes
grow with the square of the length; it is here to show what deltas save.

"Anatomy" says what the bytes are, part by part; the parts add up to all bytes, which is checked. "other frames" are
hello, subscribed and events, "wrapping" is what puts frames into a message: brackets and commas on WebSocket, the
fields `event` and `data` and empty lines on SSE, a line feed on NDJSON. "framing" is the header of a WebSocket frame,
or the length and the line ends of an HTTP chunk.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from benchmarks.live import LiveServer, Readers, bottleneck, wait_until
from benchmarks.report import Progress, command_line, grouped_bars, machine, plot, save, size, table, verdict

SID = "wire"
TOKEN_BYTES = 5
RATE, FLUSH = 100, 0.05  # tokens a second; the default of STREAMING_FLUSH_INTERVAL
SCALE = 10  # times faster, both, for long texts in a short time
MIB = 1_048_576
DELTA = re.compile(r'\{("t":"delta",)("sid":"[^"]*",)("p":\d+,)("off":\d+,)"s":"((?:[^"\\]|\\.)*)"\}')
SSE_ID = re.compile(r"^id: .*\n", re.MULTILINE)
#: The parts of all bytes, and what each looks like.
PARTS = {
    "text": "",
    "t": '"t":"delta",',
    "sid": f'"sid":"{SID}",',
    "p": '"p":2,',
    "off": '"off":1234,',
    "s": '{"s":""}',
    "wrapping": "[] or fields, line feeds",
    "id": "id: EPOCH.2.2~1234, SSE only",
    "framing": "of WebSocket frame, HTTP chunk",
    "control": "PING",
    "other frames": "hello, subscribed, events",
    "head": "of the HTTP response",
}


@dataclass(frozen=True)
class Case:
    """One production and its one client."""

    carrier: str
    tokens: int
    scale: int = 1
    query: str = ""

    @property
    def title(self) -> str:
        """How tables call it."""
        return self.carrier + (" deltas=0" if self.query else "")

    @property
    def rate(self) -> int:
        """Tokens a second."""
        return RATE * self.scale

    @property
    def flush(self) -> float:
        """Seconds for which text is collected."""
        return FLUSH / self.scale


@dataclass
class Result:
    """What the client got.

    Attributes:
        rate: tokens a second that the producer reached.
        seconds: from the message's start to its end, as the client saw them.
        parts: bytes by their use, see PARTS; none for `deltas=0`.
        growth: for the plot, seconds and bytes so far, message by message.
    """

    case: Case
    rate: float
    bytes: int
    messages: int
    seconds: float
    most: int
    bottleneck: str
    deltas: int = 0
    parts: Counter[str] = field(default_factory=Counter)
    growth: list[tuple[float, int]] = field(default_factory=list)

    @property
    def text(self) -> int:
        """Bytes of the text."""
        return self.case.tokens * TOKEN_BYTES

    @property
    def times(self) -> float:
        """All bytes through those of the text."""
        return self.bytes / self.text

    @property
    def per_second(self) -> float:
        """Messages a second."""
        return self.messages / self.seconds


# -- measuring


def run(case: Case) -> Result:
    """Produce one answer for one client, in a new server."""
    server = LiveServer(STREAMING_FLUSH_INTERVAL=str(case.flush))
    readers = Readers(server, case.carrier)
    try:
        readers.connect([SID], read=1, query=case.query, keep=True)
        reports: list[dict[str, Any]] = []

        def has_ended() -> bool:
            reports.append(readers.report())
            return any(report["ended"] for report in reports)

        cpu = server.cpu()
        server.produce([SID], rate=case.rate, tokens=case.tokens)
        wait_until(has_ended, "the message's end", 30 + 3 * case.tokens / case.rate)
        cpu = server.cpu() - cpu
        reached = case.tokens / server.usage()["turns"][0]
    finally:
        readers.close()
        server.close()
    seconds, client_cpu = (sum(report[name] for report in reports) for name in ("seconds", "cpu"))
    return _result(case, reached, reports, bottleneck(cpu, client_cpu, seconds))


def _result(case: Case, reached: float, reports: Sequence[dict[str, Any]], side: str) -> Result:
    kept = [tuple(one) for report in reports for one in report.get("kept", [])]
    head, body = (sum(report[name] for report in reports) for name in ("head_bytes", "bytes"))
    length = sum(sum(text.values()) for text in reports[-1]["text"])
    if length != case.tokens * TOKEN_BYTES:
        raise RuntimeError(f"the client has {length} characters of {case.tokens * TOKEN_BYTES}")
    first = next(at for at, one in enumerate(kept) if '"message.start"' in one[2])
    times = [when for when, _, message in kept[first:] if message != "[]"]
    most = max(sum(1 for other in times if 0 <= other - when < 1) for when in times)
    result = Result(case, reached, head + body, len(times), times[-1] - times[0], most, side)
    total = head
    for when, wire, _ in kept:
        total += wire
        result.growth.append((when - times[0], total))
    if not case.query:
        result.parts, result.deltas = dissect(case.carrier, [one[1:] for one in kept])
        result.parts["head"] = head
        assert result.parts.total() == result.bytes, "the parts are not all bytes"
    return result


def dissect(carrier: str, messages: Sequence[tuple[int, str]]) -> tuple[Counter[str], int]:
    """Bytes by their use, and the number of deltas, of messages and their sizes on the wire; all is ASCII."""
    parts: Counter[str] = Counter()
    deltas = 0
    ends = {"websocket": "", "sse": "\n\n", "ndjson": "\n"}
    for wire, message in messages:
        if message == "[]":
            parts["control"] += wire
            continue
        parts["framing"] += wire - len(message)
        end = ends[carrier]
        items = [item + end for item in message.split(end) if item] if end else [message]
        for item in items:
            found = DELTA.findall(item)
            deltas += len(found)
            for members in found:
                for name, member in zip(("t", "sid", "p", "off", "text"), members, strict=True):
                    parts[name] += len(member)
                parts["s"] += len('{"s":""}')
            _rest(parts, DELTA.sub("", item), bool(found))
    return parts, deltas


def _rest(parts: Counter[str], rest: str, has_delta: bool) -> None:
    """Count what is left of a message, an SSE event or a line without its deltas."""
    if not has_delta or "{" in rest:
        parts["other frames"] += len(rest)
        return
    token = SSE_ID.search(rest)
    identity = len(token[0]) if token else 0
    parts["id"] += identity
    parts["wrapping"] += len(rest) - identity


# -- showing it


def figures_table(results: Sequence[Result]) -> str:
    """All cases."""
    first = ["carrier", "tokens", "tok/s", "rate", "flush ms", "bytes", "x text"]
    rows = []
    for one in results:
        case = one.case
        row = [case.title, f"{case.tokens:,}", f"{case.rate:,}", f"{one.rate:,.1f}", f"{case.flush * 1_000:g}"]
        row += [f"{one.bytes:,}", f"{one.times:.2f}", f"{one.messages:,}", f"{one.seconds:.2f}"]
        rows.append([*row, f"{one.per_second:.1f}", str(one.most)])
    return table("One client", [*first, "messages", "seconds", "a second", "most"], rows)


def bounds_table(long: Result, short: Result, paced: Result) -> str:
    """What is required, and what was found."""
    ratio, mib, pace = long.bytes / short.bytes, long.bytes / MIB, paced.per_second
    how = "" if long.case.scale == 1 else f", at {long.case.rate:,} tok/s, flush {long.case.flush * 1_000:g} ms"
    rows = [
        [f"bytes, 10k / 1k tokens{how}", "56.7", f"{ratio:.2f}", "<= 12", "<= 10.2", verdict(ratio, 12, 10.2)],
        [f"bytes for 10k{how}", "208.44 MiB", f"{mib:.4f} MiB", "<= 0.5 MiB", "<= 0.15 MiB", verdict(mib, 0.5, 0.15)],
        [f"the same, x text{how}", "", f"{long.times:.2f}", "", "<= 3.5", verdict(long.times, 3.5, 3.5)],
        [f"messages a second, {RATE} tok/s", "200 to 339", f"{pace:.2f}", "<= 24", "<= 20.5", verdict(pace, 24, 20.5)],
    ]
    return table("Required of a WebSocket", ["what", "reference", "here", "required", "goal", "verdict"], rows)


def goal_line(long: Result) -> str:
    """What the goal for 10,000 tokens leaves for each delta."""
    goal = 0.15 * MIB / long.deltas
    used, text = long.bytes / long.deltas, long.parts["text"] / long.deltas
    return (
        f"0.15 MiB in {long.deltas:,} deltas are {goal:.1f} bytes each. They were {used:.1f}: text {text:.1f}, the "
        f"stream's id with its member {long.parts['sid'] / long.deltas:.1f}, and so on, see the anatomy."
    )


def anatomy_table(results: Sequence[Result]) -> str:
    """What the bytes are, per part: of all, for each delta, and through the text's bytes."""
    headers = ["part", "looks like"]
    for one in results:
        headers += [f"{one.case.carrier} {one.case.tokens:,}", "a delta", "x text"]
    rows = []
    for part, looks in PARTS.items():
        row = [part, looks]
        for one in results:
            each = one.parts[part]
            row += [f"{each:,}", f"{each / one.deltas:.1f}", f"{each / one.text:.3f}"]
        rows.append(row)
    total = ["all", ""]
    for one in results:
        total += [f"{one.bytes:,}", f"{one.bytes / one.deltas:.1f}", f"{one.times:.3f}"]
    return table(
        "Anatomy: bytes, bytes through the number of deltas, bytes through the text's", headers, [*rows, total]
    )


def ids_table(long: Result) -> str:
    """What other lengths of the stream's id would make of the long answer: computed, not measured."""
    rows = []
    for what, length in (("one character", 1), ("as measured", len(SID)), ("twelve", 12), ("a UUID", 36)):
        count = long.bytes + (length - len(SID)) * long.deltas
        rows.append([what, str(length), f"{count:,}", f"{count / MIB:.4f} MiB", f"{count / long.text:.2f}"])
    title = "The same with another length of the stream's id, which is in each delta (computed)"
    return table(title, ["id", "characters", "bytes", "", "x text"], rows)


def square_line(short: Result, long: Result) -> str:
    """How `deltas=0` grows."""
    factor, ratio = long.case.tokens // short.case.tokens, long.bytes / short.bytes
    return (
        f"\ndeltas=0: {factor} times the text is {ratio:.1f} times the bytes; {long.case.tokens:,} tokens are "
        f"{size(long.bytes)}, {long.times:.1f} x text, of which the last 1 x is the whole text in part.end."
    )


def draw_growth(results: Sequence[Result], axis: Any) -> None:
    """Bytes against tokens, the longest run of each carrier."""
    for one in (group[-1] for group in _groups(results)):
        times, totals = zip(*one.growth, strict=True)
        tokens = [min(max(time, 0) * one.case.rate, one.case.tokens) for time in times]
        axis.plot(tokens, [total / 1_024 for total in totals], label=one.case.title)
    most = max(one.case.tokens for one in results)
    axis.plot([0, most], [0, most * TOKEN_BYTES / 1_024], "k:", label="the text itself")
    axis.set_xlabel("tokens produced")
    axis.set_ylabel("KiB received so far")
    axis.set_title("Bytes on the wire, as an answer grows (lower is better)", fontsize=10)
    axis.legend(fontsize=8)


def draw_anatomy(results: Sequence[Result], axis: Any) -> None:
    """The parts of the bytes, the shortest run of each carrier."""
    shown = [group[0] for group in _groups(results) if group[0].parts]
    bottoms = [0.0] * len(shown)
    for number, part in enumerate(part for part in PARTS if any(one.parts[part] for one in shown)):
        heights = [one.parts[part] / one.text for one in shown]
        colour = f"C{number}" if number < 10 else "black"
        axis.bar([one.case.carrier for one in shown], heights, bottom=bottoms, label=part, color=colour, width=0.6)
        bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
    for at, total in enumerate(bottoms):
        axis.text(at, total, f"{total:.2f}", ha="center", va="bottom", fontsize=8)
    axis.axhline(3.5, color="tab:green", linestyle="--", linewidth=1, label="goal 3.5 (10k)")
    axis.set_xlim(-0.5, len(shown) + 0.4)
    axis.set_ylabel("bytes through the text's own")
    axis.set_title("What the bytes are, 1,000 tokens (lower is better)", fontsize=10)
    handles, labels = axis.get_legend_handles_labels()
    axis.legend(handles[::-1], labels[::-1], fontsize=7, loc="upper right")


def draw_pace(paced: Sequence[Result], axis: Any) -> None:
    """Messages a second."""
    names = [one.case.title.replace(" ", "\n") for one in paced]
    mean, most = [one.per_second for one in paced], [float(one.most) for one in paced]
    series = {"mean": mean, "most in one second": most}
    grouped_bars(axis, "Messages a second at 100 tok/s (lower is better)", "", names, series, log=False)
    axis.axhline(24, color="tab:red", linestyle="--", label="required 24")
    axis.axhline(20.5, color="tab:green", linestyle="--", label="goal 20.5")
    axis.set_ylim(0, 32)
    axis.legend(fontsize=8, ncols=2)


def _groups(results: Sequence[Result]) -> list[list[Result]]:
    """The results by title, each group from the shortest text to the longest."""
    groups: dict[str, list[Result]] = {}
    for one in sorted(results, key=lambda each: each.case.tokens):
        groups.setdefault(one.case.title, []).append(one)
    return list(groups.values())


def main() -> None:
    """Run it."""
    options = command_line(__doc__).parse_args()
    scale = SCALE if options.quick else 1
    others = [Case("sse", 1_000, scale), Case("ndjson", 1_000, scale)]
    whole = [Case("websocket", tokens, scale, "?deltas=0") for tokens in (1_000, 3_000)]
    pair = [Case("websocket", tokens, scale) for tokens in (1_000, 10_000)]
    cases = [*pair, *others, *whole] + ([Case("websocket", 1_000)] if options.quick else [])
    progress = Progress(len(cases))
    results = []
    for case in cases:
        progress.step(f"{case.title}, {case.tokens:,} tokens at {case.rate:,} a second")
        results.append(run(case))
    progress.end()
    show(results, options.quick)


def show(results: Sequence[Result], is_quick: bool) -> None:
    """Print the tables, write the files."""
    short, long, sse, ndjson, *whole = results[:6]
    paced = results[-1] if is_quick else short
    print(f"wire{' (quick)' if is_quick else ''}")
    print(machine())
    if is_quick:
        print(
            f"Scaled: {RATE * SCALE:,} tok/s and a flush interval of {FLUSH / SCALE * 1_000:g} ms stand for {RATE} "
            f"tok/s and {FLUSH * 1_000:g} ms, except in the last row of the first table."
        )
    else:
        print(f"Not scaled: {RATE} tok/s and default settings in all rows.")
    print(figures_table(results))
    print(bounds_table(long, short, paced))
    print(goal_line(long))
    print(anatomy_table([long, sse, ndjson]))
    print(ids_table(long))
    print(square_line(*whole))
    print(f"Bottleneck: {long.bottleneck} with {long.case.tokens:,} tokens.")
    document = {
        "is_quick": is_quick,
        "results": [
            {name: value for name, value in vars(one).items() if name != "growth"}
            | {"case": vars(one.case), "times_text": one.times, "messages_per_second": one.per_second}
            for one in results
        ],
        "ratio_10k_to_1k": long.bytes / short.bytes,
    }
    save("wire", document)
    at_100 = [paced] if is_quick else [one for one in results if one.case.tokens == 1_000]
    panels = [partial(draw_growth, results), partial(draw_anatomy, results), partial(draw_pace, at_100)]
    plot("wire", "One answer on the wire, one client", panels)


if __name__ == "__main__":
    main()
