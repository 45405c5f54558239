"""An image with every kind of entry, and the record of what was skipped."""

from __future__ import annotations

import os
import random
import stat
from pathlib import Path

import ferrofs
import pytest

LARGE = 3_000_000


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Names skipped tests in the summary of `.ci/run`."""
    record = os.environ.get("FERROFS_SKIPPED")
    if record and report.skipped and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        name = report.nodeid.rpartition("/")[2]
        with open(record, "a", encoding="utf-8") as file:
            file.write(f"python {name}: {reason}\n")


def pytest_collectreport(report: pytest.CollectReport) -> None:
    record = os.environ.get("FERROFS_SKIPPED")
    if record and report.skipped and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        with open(record, "a", encoding="utf-8") as file:
            file.write(f"python {report.nodeid}: {reason}\n")


def contents() -> dict[str, bytes]:
    """The regular files of the image, by path."""
    noise = random.Random(7)
    words = b" ".join(b"word%d" % noise.randrange(500) for _ in range(LARGE // 7))
    return {
        "empty": b"",
        "hello.txt": b"hello, world\n",
        "lines.txt": b"".join(b"line %d\n" % n for n in range(1000)),
        "large": words[:LARGE],
        "noise": noise.randbytes(200_000),
        "docs/a.md": b"# A\n",
        "docs/deep/er/b.md": b"# B\n" * 5000,
        "docs/schön.txt": b"umlaut",
    }


@pytest.fixture(scope="session")
def files() -> dict[str, bytes]:
    return contents()


@pytest.fixture(scope="session")
def image_file(tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes]) -> Path:
    output = tmp_path_factory.mktemp("image") / "all.erofs"
    entries: list[ferrofs.Entry] = [
        ferrofs.Entry(name, data=data, mtime_ns=1_700_000_000_123_456_789)
        for name, data in files.items()
    ]
    entries += [
        ferrofs.Entry("empty-dir"),
        ferrofs.Entry("link", target="hello.txt"),
        ferrofs.Entry("dirlink", target="docs/deep"),
        ferrofs.Entry("absolute", target="/docs/a.md"),
        ferrofs.Entry("up", target="docs/deep/../a.md"),
        ferrofs.Entry("broken", target="nowhere"),
        ferrofs.Entry("loop", target="loop"),
        ferrofs.Entry("hard", target="hello.txt", hard_link=True),
        ferrofs.Entry("fifo", mode=stat.S_IFIFO | 0o600, uid=1000, gid=100),
        ferrofs.Entry("null", mode=stat.S_IFCHR | 0o666, rdev=os.makedev(1, 3)),
        ferrofs.Entry("tagged", data=b"t", xattrs={"user.colour": b"red", "user.n": b"\0\1"}),
    ]
    ferrofs.build(entries, output, "lz4hc,level=9", label="test")
    return output


@pytest.fixture
def image(image_file: Path) -> ferrofs.Image:
    return ferrofs.Image(image_file)
