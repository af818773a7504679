"""How a user tests a page of their own: with the Flask test client, no server and no backend."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import accumulate

import pytest
from flask.testing import FlaskClient

from app import create_app
from examples import report as module
from examples.report import REGIONS, SALES, report
from streaming import Resume, Start, Update
from streaming.errors import Cut


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> FlaskClient:
    """A client of an app with the blueprint; nothing takes time."""
    monkeypatch.setattr(module, "PAUSE", 0)
    return create_app({"TESTING": True}, blueprints=[report]).test_client()


def test_the_report_has_a_row_for_every_region(client: FlaskClient) -> None:
    """All rows are there, in order, then the total, and the page is complete."""
    response = client.get("/report")
    assert response.status_code == 200
    rows = re.findall(r'<th scope="row">(\w+)</th>\s*<td>([\d,]+)</td>', response.text)
    expected = [*SALES.items(), ("Total", sum(SALES.values()))]
    assert rows == [(name, f"{amount:,}") for name, amount in expected]
    assert response.text.endswith("<!--stream:complete-->")


def test_the_sum_so_far_follows_each_row(client: FlaskClient) -> None:
    """One update per region, each with the sum of the regions before it and itself."""
    html = client.get("/report").text
    updates = re.findall(r'<template data-boundary="0">(.*?)</template>', html, re.DOTALL)
    sums = [re.findall(r">([\d,]+)</strong>", update) for update in updates]
    assert sums == [[f"{amount:,}"] for amount in accumulate(SALES.values())]


def test_the_heading_is_sent_before_anything_is_looked_up(client: FlaskClient) -> None:
    """The first chunk is what the first record tells; the rest follows."""
    chunks = client.get("/report").iter_encoded()
    first = next(chunks).decode()
    rest = b"".join(chunks).decode()
    assert "<h1>Sales report</h1>" in first
    assert not any(region in first for region in REGIONS)
    assert all(region in rest for region in REGIONS)


def test_a_failing_query_cuts_the_page(client: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was known is sent; the page is not finished as if nothing had happened."""

    def records() -> Iterator[Start | Resume | Update]:
        yield Start({"regions": REGIONS, "most": 1})
        raise ConnectionError("the database is down")

    monkeypatch.setattr(module, "records", records)
    response = client.get("/report")
    assert response.status_code == 200
    sent: list[bytes] = []
    with pytest.raises(Cut):
        sent.extend(response.iter_encoded())
    assert "<h1>Sales report</h1>" in b"".join(sent).decode()
