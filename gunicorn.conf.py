"""The deployment that the README shows: `gunicorn -c gunicorn.conf.py app:app`. docs/deployment.md explains it."""

from gevent import monkey

monkey.patch_all()

import logging
import os

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
