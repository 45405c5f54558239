"""Types: the stub of the compiled half is that of the module, and the package is typed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.thread_unsafe(reason="runs mypy")


def run(*arguments: str) -> None:
    pytest.importorskip("mypy")
    done = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=PACKAGE, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_stubtest_finds_no_difference() -> None:
    allowed = ("--allowlist", "tests/stubtest_allowlist.txt")
    run("mypy.stubtest", "ferrofs", "--mypy-config-file", "pyproject.toml", *allowed)


def test_the_package_is_strictly_typed() -> None:
    run("mypy", "--strict", "-p", "ferrofs")
