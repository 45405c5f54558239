"""Builds."""

from __future__ import annotations

import errno
import io
import os
import stat
import subprocess
import sys
import tarfile
import tempfile
import threading
import uuid
from pathlib import Path
from typing import Any

import ferrofs
import pytest


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    top = tmp_path / "tree"
    (top / "sub").mkdir(parents=True)
    (top / "a.txt").write_bytes(b"a" * 100_000)
    (top / "sub/b.bin").write_bytes(os.urandom(5000))
    (top / "sub/link").symlink_to("../a.txt")
    return top


def test_a_directory(tree: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.erofs"
    number = uuid.uuid4()
    (tree / "left").mkdir(exist_ok=True)
    report = ferrofs.build(
        tree,
        output,
        "zstd,level=5",
        label="name",
        uuid=number,
        timestamp=7,
        exclude=["/left/"],
        exclude_regex=[r"\.bin$"],
    )
    image = ferrofs.Image(output)
    assert image.namelist() == ["a.txt", "sub/", "sub/link"]
    assert image.read("sub/link") == b"a" * 100_000
    assert report.size == output.stat().st_size and report.content_size == 100_000
    assert (image.superblock.uuid, image.superblock.label) == (number, "name")
    assert image.check()


@pytest.mark.parametrize("option", [{"exclude": ["a.txt"]}, {"exclude_regex": ["a"]}])
def test_only_of_a_directory_something_is_left_out(
    tree: Path, tmp_path: Path, option: dict[str, Any]
) -> None:
    archive = tmp_path / "a.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(tree, arcname=".")
    entries = iter([("a.txt", b"a")])
    for source in (archive, io.BytesIO(archive.read_bytes()), entries):
        with pytest.raises(ferrofs.BuildError, match="exclude") as raised:
            ferrofs.build(source, tmp_path / "out.erofs", **option)
        assert raised.value.errno == errno.EINVAL
    assert not (tmp_path / "out.erofs").exists() and next(entries)


@pytest.mark.parametrize("suffix", ["", ":gz", ":xz"])
def test_a_tar_file(tree: Path, tmp_path: Path, suffix: str) -> None:
    archive = tmp_path / "a.tar"
    with tarfile.open(archive, f"w{suffix}") as tar:
        tar.add(tree, arcname=".")
    data = (tree / "sub/b.bin").read_bytes()
    ferrofs.build(archive, tmp_path / "path.erofs")
    with open(archive, "rb") as stream:
        ferrofs.build(stream, tmp_path / "stream.erofs")
    ferrofs.build(io.BytesIO(archive.read_bytes()), tmp_path / "bytes.erofs")
    for name in ("path", "stream", "bytes"):
        image = ferrofs.Image(tmp_path / f"{name}.erofs")
        assert image.read("sub/b.bin") == data and image.check()
    assert (tmp_path / "path.erofs").read_bytes() == (tmp_path / "stream.erofs").read_bytes()


def test_an_image_is_no_archive(tree: Path, tmp_path: Path) -> None:
    image, output = tmp_path / "image.erofs", tmp_path / "out.erofs"
    ferrofs.build(tree, image)
    for source in (image, io.BytesIO(image.read_bytes())):
        with pytest.raises(ferrofs.BuildError, match="this is an EROFS image"):
            ferrofs.build(source, output)
    assert not output.exists()


def test_entries_of_every_kind(tmp_path: Path, tree: Path) -> None:
    def entries() -> object:
        yield "plain", b"bytes"
        yield "dir", None
        yield ferrofs.Entry("dir/host", file=tree / "a.txt", mode=stat.S_IFREG | 0o4755)
        yield ferrofs.Entry("view", data=memoryview(b"view"))
        yield ferrofs.Entry("again", target="plain", hard_link=True)
        yield ferrofs.Entry("/", mode=stat.S_IFDIR | 0o700, uid=5)
        yield ferrofs.Entry("old", data=b"", mtime_ns=-1_500_000_000)
        yield "plain", b"replaced"

    ferrofs.build(entries(), tmp_path / "a.erofs", None)
    image = ferrofs.Image(tmp_path / "a.erofs")
    assert image.read("plain") == b"replaced" and image.read("again") == b"bytes"
    assert image.read("dir/host") == (tree / "a.txt").read_bytes()
    assert stat.S_IMODE(image.stat("dir/host").st_mode) == 0o4755
    assert (image.stat("/").st_uid, stat.S_IMODE(image.stat("/").st_mode)) == (5, 0o700)
    assert image.stat("old").st_mtime_ns == -1_500_000_000
    assert image.check()


def test_two_builds_have_the_same_bytes(tree: Path, tmp_path: Path) -> None:
    for name, jobs in [("one", 1), ("two", 4)]:
        ferrofs.build(tree, tmp_path / name, jobs=jobs, dedupe=True, fragments="tails")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_progress_is_reported_and_cancels(tree: Path, tmp_path: Path) -> None:
    calls: list[tuple[str, int, int]] = []
    # Threads that run this test share `tmp_path`.
    outputs = Path(tempfile.mkdtemp(dir=tmp_path))
    ferrofs.build(tree, outputs / "a", progress=lambda *done: calls.append(done))
    assert calls[0] == ("import", 0, 0) and calls[-1][2] == 105_000
    with pytest.raises(ferrofs.CancelledError) as raised:
        ferrofs.build(tree, outputs / "b", progress=lambda *_: False)
    assert raised.value.errno == 125

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ferrofs.build(tree, outputs / "b", progress=fail)
    assert os.listdir(outputs) == ["a"]


class EndlessTar(io.RawIOBase):
    """An archive that never ends; only a cancelled build does."""

    def __init__(self) -> None:
        self.served = threading.Event()
        self.header = tarfile.TarInfo("endless")
        self.header.size = 1 << 40

    def read(self, size: int = -1, /) -> bytes:
        if not self.served.is_set():
            self.served.set()
            return self.header.tobuf(tarfile.GNU_FORMAT)
        return bytes(size)


def test_a_running_build_is_cancelled(tmp_path: Path) -> None:
    source = EndlessTar()
    with pytest.raises(ferrofs.CancelledError):
        ferrofs.build(source, tmp_path / "a", progress=lambda *_: not source.served.is_set())
    assert os.listdir(tmp_path) == []


def test_progress_counts_entries_of_every_source(tree: Path, tmp_path: Path) -> None:
    scratch = Path(tempfile.mkdtemp(dir=tmp_path))
    with tarfile.open(scratch / "a.tar", "w") as tar:
        tar.add(tree / "a.txt", arcname="a.txt")
        tar.add(tree / "sub", arcname="sub")
    sources: list[Any] = [
        tree,
        scratch / "a.tar",
        io.BytesIO((scratch / "a.tar").read_bytes()),
        [("a.txt", b"a"), ("sub", None), ("sub/b", b"b"), ferrofs.Entry("sub/l", target="b")],
    ]
    for source in sources:
        calls: list[tuple[str, int, int]] = []
        ferrofs.build(
            source,
            scratch / "a",
            overwrite=True,
            progress=lambda *done, calls=calls: calls.append(done),  # type: ignore[misc]
        )
        # The root counts if it is found.
        assert calls[-1][1] in (4, 5), source


class EndlessEntries(io.RawIOBase):
    """An archive with ever more files."""

    count = 0

    def read(self, size: int = -1, /) -> bytes:
        self.count += 1
        return tarfile.TarInfo(f"f{self.count}").tobuf(tarfile.GNU_FORMAT)[:size]


def test_an_import_of_an_archive_is_reported_and_cancelled(tmp_path: Path) -> None:
    # Threads that run this test share `tmp_path`.
    scratch = tempfile.mkdtemp(dir=tmp_path)
    source = EndlessEntries()
    with pytest.raises(ferrofs.CancelledError):
        ferrofs.build(source, f"{scratch}/a", progress=lambda phase, entries, size: entries == 0)
    assert source.count > 1 and os.listdir(scratch) == []


MEMORY = """
import re, sys
import ferrofs

def peak():
    return int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1]) >> 10

before = peak()
ferrofs.build(sys.argv[1], sys.argv[2], None, memory=64 << 20)
print(peak() - before)
"""


@pytest.mark.thread_unsafe(reason="measures")
def test_the_memory_limit_holds_for_the_tree(tmp_path: Path) -> None:
    archive = tmp_path / "a.tar.gz"
    # 100 MB of attributes.
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        for number in range(12_500):
            entry = tarfile.TarInfo(f"f{number}")
            entry.pax_headers = {"SCHILY.xattr.user.x": f"{number:08}" + "x" * 7_992}
            tar.addfile(entry)
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(archive), str(tmp_path / "a.erofs")],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stderr == "" and int(done.stdout) < 70
    assert sorted(os.listdir(tmp_path)) == ["a.erofs", "a.tar.gz"]


def test_the_last_report_comes_before_the_image_has_its_name(tree: Path, tmp_path: Path) -> None:
    outputs = Path(tempfile.mkdtemp(dir=tmp_path))
    output = outputs / "a"
    calls: list[tuple[str, bool]] = []
    ferrofs.build(
        tree, output, progress=lambda phase, *_: calls.append((phase, output.exists()))
    )
    assert calls[-1] == ("publish", False) and output.exists()
    assert not any(exists for _, exists in calls)
    output.unlink()

    def interrupt(phase: str, *_: object) -> None:
        if phase == "publish":
            raise KeyboardInterrupt

    for old in (None, b"old"):
        if old is not None:
            output.write_bytes(old)
        for exception, progress in [
            (ferrofs.CancelledError, lambda phase, *_: phase != "publish"),
            (KeyboardInterrupt, interrupt),
        ]:
            with pytest.raises(exception):
                ferrofs.build(tree, output, progress=progress, overwrite=True)
            assert (output.read_bytes() if output.exists() else None) == old
            assert len(os.listdir(outputs)) == (old is not None)


class FailingStream(io.RawIOBase):
    """An archive of which `read` raises when `count` bytes were read."""

    def __init__(self, data: bytes, count: int, error: BaseException) -> None:
        self.data, self.count, self.error = io.BytesIO(data), count, error
        self.threads: set[int] = set()

    def read(self, size: int = -1, /) -> bytes:
        self.threads.add(threading.get_ident())
        if self.data.tell() >= self.count:
            raise self.error
        return self.data.read(min(size, 10_000))


@pytest.mark.parametrize("suffix", ["", ":gz", ":xz"])
def test_what_a_stream_raises(tree: Path, tmp_path: Path, suffix: str) -> None:
    scratch = Path(tempfile.mkdtemp(dir=tmp_path))
    with tarfile.open(scratch / "a.tar", f"w{suffix}") as tar:
        tar.add(tree, arcname=".")
        noise = tarfile.TarInfo("noise")
        noise.size = 300_000
        tar.addfile(noise, io.BytesIO(os.urandom(noise.size)))
    data = (scratch / "a.tar").read_bytes()
    for count in (0, 1000, 100_000):
        failing = FailingStream(data, count, ValueError("broken"))
        with pytest.raises(ferrofs.ErofsError, match="broken") as raised:
            ferrofs.build(failing, scratch / "a")
        assert raised.value.__cause__ is failing.error and raised.value.errno == 5
        for exit in (KeyboardInterrupt("now"), SystemExit("now"), GeneratorExit("now")):
            with pytest.raises(type(exit), match="now"):
                ferrofs.build(FailingStream(data, count, exit), scratch / "a")
    assert os.listdir(scratch) == ["a.tar"]
    whole = FailingStream(data, len(data) + 1, ValueError())
    ferrofs.build(whole, scratch / "a")
    assert ferrofs.Image(scratch / "a").check()
    assert whole.threads == {threading.get_ident()}


WAITING = """
import io, os, signal, sys, threading
import ferrofs

# A shell lets what it starts in the background ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)

class Waits(io.RawIOBase):
    def read(self, size=-1, /):
        threading.Event().wait()

source = Waits() if sys.argv[1] == "object" else os.fdopen(os.pipe()[0], "rb")
threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGINT]).start()
try:
    ferrofs.build(source, sys.argv[2] + "/a")
except KeyboardInterrupt:
    print("interrupted", os.listdir(sys.argv[2]))
"""


@pytest.mark.parametrize("kind", ["object", "pipe"])
def test_a_signal_ends_a_build_whose_stream_waits(kind: str, tmp_path: Path) -> None:
    scratch = tempfile.mkdtemp(dir=tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", WAITING, kind, scratch], capture_output=True, timeout=30
    )
    assert (done.stdout, done.stderr) == (b"interrupted []\n", b"")


def test_what_cannot_be_built_is_refused(tree: Path, tmp_path: Path) -> None:
    output = tmp_path / "a.erofs"
    for arguments, text in [
        ({"compression": "lz5"}, "no algorithm lz5"),
        ({"block_size": 1000}, "power of two"),
        ({"label": "x" * 17}, "16 bytes"),
        ({"fragments": "some"}, "none, tails or all"),
    ]:
        with pytest.raises(ferrofs.BuildError, match=text):
            ferrofs.build(tree, output, **arguments)  # type: ignore[arg-type]
    for path in ("../a", "a/../../b"):
        with pytest.raises(ferrofs.BuildError, match=r"\.\."):
            ferrofs.build([(path, b"")], output)
    with pytest.raises(ferrofs.BuildError, match="no directory"):
        ferrofs.build([("a", b""), ("a/b", b"")], output)
    for entry in (("d", b""), ferrofs.Entry("d", target="f", hard_link=True)):
        with pytest.raises(ferrofs.BuildError, match="no directory") as refused:
            ferrofs.build([("f", b"f"), ("d/a", b"a"), entry], output)
        assert (refused.value.errno, refused.value.path) == (errno.ENOTDIR, "d")
    with pytest.raises(ferrofs.BuildError, match="earlier"):
        ferrofs.build([ferrofs.Entry("a", target="b", hard_link=True)], output)
    with pytest.raises(TypeError):
        ferrofs.build(7, output)
    assert not output.exists()
    output.write_bytes(b"mine")
    with pytest.raises(FileExistsError) as raised:
        ferrofs.build(tree, output)
    assert raised.value.errno == 17 and output.read_bytes() == b"mine"
    ferrofs.build(tree, output, overwrite=True)
    assert ferrofs.Image(output).check()


@pytest.mark.parametrize(
    "entry",
    [
        ferrofs.Entry("a", data=b"x", file="/etc/passwd"),
        ferrofs.Entry("a", data=b"x", target="b"),
        ferrofs.Entry("a", file="/etc/passwd", target="b"),
        ferrofs.Entry("a", data=b"x", target="first", hard_link=True),
        ferrofs.Entry("a", data=b"", mode=stat.S_IFIFO | 0o644),
        ferrofs.Entry("a", data=b"x", mode=stat.S_IFDIR | 0o755),
        ferrofs.Entry("a", file="/etc/passwd", mode=stat.S_IFLNK | 0o777),
        ferrofs.Entry("a", target="b", mode=stat.S_IFREG | 0o644),
        ferrofs.Entry("a", target="b", mode=0o777),
    ],
)
def test_an_entry_that_contradicts_itself_is_refused(entry: ferrofs.Entry, tmp_path: Path) -> None:
    with pytest.raises(ferrofs.BuildError, match="an entry has") as raised:
        ferrofs.build([("first", b"1"), entry], tmp_path / "a.erofs")
    assert (raised.value.errno, raised.value.path) == (errno.EINVAL, "a")


def test_an_exception_of_the_iterable_ends_the_build(tmp_path: Path) -> None:
    def entries() -> object:
        yield "a", b""
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        ferrofs.build(entries(), tmp_path / "a.erofs")
    assert os.listdir(tmp_path) == []
