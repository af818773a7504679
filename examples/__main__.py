"""`python -m examples`: the example backend in a process of its own, and the server with the example pages.

HOST, PORT and STREAMING_* of the environment are honoured. With a STREAMING_BACKEND_URL of your own, no backend is
started.
"""

import app

# isort: split
# `app` is first, since it lets gevent patch the standard library, of which the rest makes use.

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from examples.demo import demo
from examples.report import report
from examples.start import start

HERE = Path(__file__).parent
PROMISE = "backend on "  # how the line begins that the backend prints when it listens


@contextlib.contextmanager
def backend() -> Iterator[str]:
    """Run the example backend while the context lasts; gives its URL.

    The backend ends when its standard input does. So it ends with this process, however that ends.
    """
    command = [sys.executable, str(HERE / "backend.py"), "--port", "0", "--until-stdin-ends"]
    # A process group of its own: a terminal sends Ctrl-C to this process only, and pages that are open may end first.
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, process_group=0)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith(PROMISE):
            sys.exit("the example backend did not start")
        yield line.removeprefix(PROMISE).strip()
    finally:
        process.terminate()
        process.wait()


def main() -> None:
    """Serve the examples until SIGTERM or Ctrl-C."""
    os.environ.setdefault("STREAMING_TEMPLATE_FOLDER", str(HERE / "templates"))
    # Agents that are at work would keep Ctrl-C waiting for the usual 5 s.
    os.environ.setdefault("STREAMING_DRAIN_TIMEOUT", "2")
    with contextlib.ExitStack() as stack:
        if "STREAMING_BACKEND_URL" not in os.environ:
            os.environ["STREAMING_BACKEND_URL"] = stack.enter_context(backend())
        app.main(blueprints=[start, report, demo])


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
