"""Shared by all tests: gevent patches first, as `app.py` does, so that everything below cooperates."""

from gevent import monkey

monkey.patch_all()

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

for name in [name for name in os.environ if name.startswith("STREAMING_")]:
    del os.environ[name]  # the developer's own settings are not the tests'

from tests.live import LiveSite
from tests.parts import Backend, Site


@pytest.fixture
def backend() -> Iterator[Backend]:
    """A scripted backend on a raw socket."""
    backend = Backend()
    yield backend
    backend.close()


@pytest.fixture
def site(backend: Backend, tmp_path: Path) -> Iterator[Site]:
    """Our server on a real socket, with the built-in route in front of `backend`; nothing may be left in use."""
    site = Site(tmp_path, backend.url)
    yield site
    site.close()


@pytest.fixture
def live_site() -> Iterator[LiveSite]:
    """Our server with an app for live tests; nothing may be left of its clients."""
    site = LiveSite()
    yield site
    site.close()
