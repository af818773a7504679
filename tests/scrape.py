"""What `GET /metrics` of a server says, and how it has grown.

The library's registry is the process's, and so every server of the tests adds to it. What a test looks at is therefore
a difference, between two answers of one server: an app reports what it has counted when it is asked, and no other.
"""

from __future__ import annotations

from typing import Protocol

from flask import Flask
from prometheus_client import Metric
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.parser import text_string_to_metric_families

from streaming import metrics
from tests.parts import Client

Labels = tuple[tuple[str, str], ...]


class Asked(Protocol):
    """A server that can be asked: `Site`, `LiveSite`, `Server`."""

    def connect(self) -> Client:
        """A new connection."""
        ...


def families(asked: Asked) -> list[Metric]:
    """The metrics that a server answers with."""
    client = asked.connect().ask("/metrics", headers="Connection: close\r\n")
    body = client.body()
    assert client.head()[0] == 200
    assert body.is_complete
    client.leave()
    return parsed(body.text)


def parsed(text: bytes) -> list[Metric]:
    """The metrics of an answer."""
    return list(text_string_to_metric_families(text.decode()))


def values(metrics: list[Metric]) -> dict[tuple[str, Labels], float]:
    """The value of each sample, by name and labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for metric in metrics
        for sample in metric.samples
    }


class Growth:
    """How a server's metrics have grown since this was made."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._app: Flask | None = None
        self._before = self._now()

    def go_on_without_a_socket(self, app: Flask) -> Growth:
        """Ask the app itself from now on: its server accepts nobody any more."""
        self._app = app
        return self

    def _now(self) -> dict[tuple[str, Labels], float]:
        if self._app is not None:
            return values(parsed(self._app.test_client().get("/metrics").data))
        return values(families(self._asked))

    def all(self) -> dict[tuple[str, Labels], float]:
        """How much each sample has grown that was there before."""
        now = self._now()
        return {key: round(now[key] - value, 9) for key, value in self._before.items() if key in now}

    def of(self, name: str, **labels: str) -> float:
        """How much one sample has grown; it must have been there before."""
        return self.all()[name, tuple(sorted(labels.items()))]

    def by(self, name: str) -> dict[str, float]:
        """How much the samples of a name with one label have grown, by the label's value; only those that have."""
        grown = {}
        for (found, labels), value in self._now().items():
            if found == name:
                ((_, label),) = labels
                assert (found, labels) in self._before, f"{name} did not show {label} before its first count"
                grown[label] = value - self._before[found, labels]
        assert grown, f"there is no {name}"
        return {label: value for label, value in grown.items() if value}

    def refused(self) -> dict[str, float]:
        """What the live path has refused, by limit."""
        return self.by("headrace_refused_total")

    def page_limits(self) -> dict[str, float]:
        """The limits that pages have met."""
        return self.by("headrace_page_limits_total")

    def outcomes(self) -> dict[str, float]:
        """How pages have ended."""
        return self.by("headrace_pages_total")


def declared() -> dict[str, tuple[str, ...]]:
    """The metrics of `streaming/metrics.py` as Prometheus knows them, each with the names of its labels."""
    found = {}
    for value in vars(metrics).values():
        for metric in value.values() if isinstance(value, dict) else [value]:
            if isinstance(metric, MetricWrapperBase):
                (family,) = metric.describe()
                found[family.name + ("_total" if family.type == "counter" else "")] = tuple(metric._labelnames)
    return found
