"""A blueprint as a user of Headrace writes it: the app makes the records of the page itself, without a backend.

create_app(blueprints=[report])
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from flask import Blueprint, Response

from app import streaming
from streaming import Resume, Start, Update

report = Blueprint("report", __name__, template_folder="templates")

REGIONS = ["North", "East", "South", "West", "Islands"]
SALES = {"North": 4_200, "East": 3_100, "South": 5_350, "West": 2_480, "Islands": 870}
PAUSE = 0.8  # seconds that looking up one region takes


@report.get("/report")
def sales() -> Response:
    """A table that fills row by row, with the sum so far above it."""
    return streaming.stream_template("report.html", records())


def records() -> Iterator[Start | Resume | Update]:
    """What the page is told, in the order in which it comes to be known."""
    owner = "report.html"  # the template in which the tags stand
    yield Start({"regions": REGIONS, "most": max(SALES.values())})
    yield Resume(owner, "progress", {"known": 0}, mode="updatable")
    total = 0
    for known, region in enumerate(REGIONS, start=1):
        amount = look_up(region)
        total += amount
        yield Resume(owner, "row", {"amount": amount}, key=region)
        yield Update(owner, "progress", {"known": known, "total": total})
    yield Resume(owner, "total", {"total": total})


def look_up(region: str) -> int:
    """A slow query. Waiting keeps nobody else from being served: gevent has patched `sleep`, as it has sockets."""
    time.sleep(PAUSE)
    return SALES[region]
