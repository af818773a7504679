"""Python's locks, which gevent has patched, between render threads and the hub: nobody waits for ever."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Threads and greenlets take one lock, a few ten thousand times; the last line says whether all got through.
CONTENTION = """
    from gevent import monkey
    monkey.patch_all()
    import os
    import sys
    import threading
    import time
    import gevent
    from pool.threads import ThreadRenderPool

    kind, threads, is_mended = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "mended"
    if not is_mended:
        import pool.threads
        pool.threads.mend_locks = lambda: None
    lock = getattr(threading, kind)()
    pool = ThreadRenderPool(workers=threads, wait=1, max_pages=1)
    turns = [0] * (threads + 2)

    def take(number):
        for _ in range(15_000):
            with lock:
                turns[number] += 1

    def take_on_the_hub(number):
        for turn in range(1_500):
            with lock:
                turns[number] += 1
            if turn % 20 == 0:
                gevent.sleep(1e-6)

    done = []
    for number in range(threads):
        pool.submit(lambda number=number: take(number), done.append, first=False)
    greenlets = [gevent.spawn(take_on_the_hub, threads + number) for number in range(2)]
    before = None
    while before != turns and not (len(done) == threads and all(greenlet.ready() for greenlet in greenlets)):
        before = list(turns)
        gevent.sleep(1)
    print("fine" if len(done) == threads and all(greenlet.ready() for greenlet in greenlets) else f"stuck {turns}")
    sys.stdout.flush()
    os._exit(0)
"""


def contend(kind: str, threads: int, state: str) -> str:
    """Run the script in a process of its own."""
    command = [sys.executable, "-c", textwrap.dedent(CONTENTION), kind, str(threads), state]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=50, check=True).stdout.strip()


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("kind", ["Lock", "RLock"])
def test_threads_and_greenlets_share_a_lock(kind: str, threads: int) -> None:
    assert contend(kind, threads, "mended") == "fine"


def test_the_mending_is_needed() -> None:
    """When this fails, gevent has been mended, and `pool/locks.py` can go."""
    # It has been the first try each time; chance has eight.
    assert any(contend(kind, 4, "unmended").startswith("stuck") for kind in ("Lock", "RLock") * 4)


PAGES = """
    from gevent import monkey
    monkey.patch_all()
    import logging
    import os
    import sys
    import gevent
    from flask import Blueprint
    from gevent.pool import Pool
    from jinja2 import DictLoader
    from app import create_app, streaming
    from streaming import Resume, Start

    logging.basicConfig(stream=open(os.devnull, "w"), level=logging.INFO)
    log = logging.getLogger("filter")
    blueprint = Blueprint("stress", __name__)

    @blueprint.app_template_filter("logged")
    def logged(value):
        log.info("%s", value)
        return value

    @blueprint.get("/page")
    def page():
        log.info("page")
        return streaming.stream_template("page.html", iter([Start({"n": 20}), Resume("page.html", "x")]))

    app = create_app(blueprints=[blueprint])
    app.jinja_loader = DictLoader({
        "row.html": "{{ i|logged }}",
        "page.html": "{% for i in range(n) %}{% include 'row.html' %}{% endfor %}"
                     "{% boundary 'x' %}{% for i in range(n) %}{% include 'row.html' %}{% endfor %}{% endboundary %}",
    })
    client = app.test_client
    ok = 0
    for data in Pool(64).imap_unordered(lambda _: client().get("/page").data, range(500)):
        ok += data.endswith(b"<!--stream:complete-->")
    print("pages", ok)
    sys.stdout.flush()
    os._exit(0)
"""


def test_filters_may_log_while_many_pages_include() -> None:
    command = [sys.executable, "-c", textwrap.dedent(PAGES)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=50, check=True)
    assert done.stdout.strip() == "pages 500"
