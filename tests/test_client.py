"""The browser client: its own tests, which Node runs, its size, and its types.

A guarantee is a test in `tests/client/*.test.mjs`. Alone they run with `node --test tests/client/*.test.mjs`.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

STATIC = Path(__file__).parent.parent / "streaming" / "static"
CLIENT = Path(__file__).parent / "client"
TSC = CLIENT / "node_modules" / "typescript" / "bin" / "tsc"


def node() -> str:
    """Node's path; without Node the test is skipped, or fails where everything must run."""
    found = shutil.which("node")
    if found is None:
        (pytest.fail if "REQUIRE_ALL" in os.environ else pytest.skip)("Node is not installed")
    return found


def run(*command: str) -> None:
    """Run a command of Node; its output is shown if it fails."""
    environment = {name: value for name, value in os.environ.items() if name != "NODE_OPTIONS"}
    done = subprocess.run([node(), *command], cwd=CLIENT, capture_output=True, text=True, timeout=50, env=environment)
    if done.returncode:
        pytest.fail(f"{done.stdout}\n{done.stderr}", pytrace=False)


@pytest.mark.parametrize(
    "path", sorted(CLIENT.glob("*.test.mjs")), ids=lambda path: path.name.removesuffix(".test.mjs")
)
def test_the_client_passes(path: Path) -> None:
    run("--test", "--test-reporter=spec", path.name)


def test_the_client_is_below_six_thousand_bytes_compressed() -> None:
    size = len(gzip.compress((STATIC / "client.js").read_bytes(), 9, mtime=0))
    assert size < 6_000, f"client.js has {size} bytes"


def test_the_types_allow_what_works_and_refuse_what_does_not() -> None:
    """Each line of `types.ts` below `@ts-expect-error` must be an error, and no other may be one."""
    node()
    if not TSC.exists():
        (pytest.fail if "REQUIRE_ALL" in os.environ else pytest.skip)("run: npm ci --prefix tests/client")
    run(str(TSC), "--project", "tsconfig.json")


def test_the_lock_names_no_registry() -> None:
    """Whoever installs may use another one."""
    lock = json.loads((CLIENT / "package-lock.json").read_text())
    assert "http" not in json.dumps([{**each, "funding": None} for each in lock["packages"].values()])
    for name, each in lock["packages"].items():
        assert not name or each["integrity"].startswith("sha512-"), name
