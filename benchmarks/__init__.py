"""Measurements behind docs/performance.md: `python -m benchmarks.NAME` from the repository's root, `--help` for more.

Each module measures one claim, prints its table and writes JSON and a plot to `benchmarks/results/`. Every figure that
matters is a ratio of two things measured in one run on one machine; absolute times only tell what that machine is like.
Load generators and backends are separate processes on raw sockets (`backend.py`, `reader.py`).

gevent patches here, since Python imports a package before its modules: as in `app.py`, nothing comes before it.
"""

from gevent import monkey

monkey.patch_all()
