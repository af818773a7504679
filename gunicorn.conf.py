"""The deployment that the README shows: `gunicorn -c gunicorn.conf.py app:app`. docs/deployment.md explains it."""

from gevent import monkey

monkey.patch_all()

import logging
import os
import shutil
import tempfile
from typing import Any

# The app's own log, beside gunicorn's.
logging.basicConfig(level=logging.INFO, format="%(asctime)s [%(process)d] [%(levelname)s] %(name)s: %(message)s")

bind = f"{os.environ.get('HOST', '127.0.0.1')}:{os.environ.get('PORT', '8000')}"
worker_class = "streaming.server.StreamingWorker"
workers = int(os.environ.get("WEB_CONCURRENCY", "1"))
# Connections of one worker; a page in flight is one.
worker_connections = 10_000
# Longer than STREAMING_DRAIN_TIMEOUT: the worker ends its streams itself, this is for what hangs.
graceful_timeout = 30
# The hub must turn this often. A slow request is no reason: only code that blocks the whole process is.
timeout = 30
keepalive = 75
accesslog = "-"
# Two servers of one user would share it.
control_socket_disable = True

# Several workers share their metrics through files, so that any of them can answer /metrics for all. The folder belongs
# to this master: it outlives a reload, and the master that replaces this one (USR2) makes its own.
METRICS = os.environ.get("PROMETHEUS_MULTIPROC_DIR", "")
OWN_METRICS = f"{tempfile.gettempdir()}/headrace-metrics-"
if workers > 1 and (not METRICS or METRICS.startswith(OWN_METRICS)):
    if not METRICS.startswith(f"{OWN_METRICS}{os.getpid()}-"):
        METRICS = tempfile.mkdtemp(prefix=f"{OWN_METRICS}{os.getpid()}-")
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = METRICS
elif not METRICS:
    os.environ.pop("PROMETHEUS_MULTIPROC_DIR", None)  # set, but empty


def child_exit(server: Any, worker: Any) -> None:
    """Take what a worker that has ended had open out of the metrics; what it counted stays."""
    if METRICS:
        from prometheus_client import multiprocess  # not before the folder is known

        multiprocess.mark_process_dead(worker.pid)


def on_exit(server: Any) -> None:
    """Remove the shared metrics of this master."""
    if METRICS.startswith(OWN_METRICS):
        shutil.rmtree(METRICS, ignore_errors=True)
