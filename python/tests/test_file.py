"""Open files."""

from __future__ import annotations

import array
import io
import os
import pickle
import tarfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ferrofs
import pytest


def test_a_file_is_a_raw_file(image: ferrofs.Image, files: dict[str, bytes]) -> None:
    with image.open("large") as file:
        assert isinstance(file, io.RawIOBase) and file.readable() and file.seekable()
        assert not file.writable() and file.name == "large" and file.mode == "rb"
        assert file.read(10) == files["large"][:10] and file.tell() == 10
        assert file.seek(-5, os.SEEK_END) == file.size - 5
        assert file.readall() == files["large"][-5:] and file.read(1) == b""
        assert file.seek(3) == 3 and file.seek(4, os.SEEK_CUR) == 7
        with pytest.raises(ValueError):
            file.seek(-1)
        with pytest.raises(ValueError):
            file.seek(0, 9)
        with pytest.raises(TypeError):
            file.seek(0.5)  # type: ignore[arg-type]
        assert type(file.tell()) is int
        with pytest.raises(io.UnsupportedOperation):
            file.fileno()
    with pytest.raises(ValueError, match="closed"):
        file.read()
    with pytest.raises(ValueError, match="closed"):
        file.pread_into(bytearray(1), 0)


def test_readinto_takes_any_writable_buffer(
    image: ferrofs.Image, files: dict[str, bytes]
) -> None:
    file = image.open("large")
    for buffer in (bytearray(1000), memoryview(bytearray(1000)), array.array("I", bytes(1000))):
        file.seek(5)
        assert file.readinto(buffer) == 1000
        assert bytes(memoryview(buffer).cast("B")) == files["large"][5:1005]
    whole = bytearray(len(files["large"]) + 100)
    assert file.pread_into(whole, 0) == file.size
    assert whole[: file.size] == files["large"] and whole[file.size :] == bytes(100)
    with pytest.raises(TypeError):
        file.readinto(b"read-only")


@pytest.fixture(scope="module")
def image_of_many_inodes(
    files: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory
) -> bytes:
    """So many that the map of the file `large` is not read with the superblock."""
    output = tmp_path_factory.mktemp("many-inodes") / "a.erofs"
    others = [(f"d{one}/{'x' * 200}{two}", b"x" * 60) for one in range(8) for two in range(200)]
    entries = [("large", files["large"] * 4), *others]
    ferrofs.build(entries, output, "lz4", pcluster_size=16384)
    return output.read_bytes()


@pytest.mark.thread_unsafe(reason="in four threads it takes half a minute")
def test_no_interrupt_is_lost_in_readahead(image_of_many_inodes: bytes) -> None:
    class Source(io.BytesIO):
        """Is interrupted once, in a read of the thread that calls."""

        left, caller = 0, threading.get_ident()

        def read(self, size: int | None = -1, /) -> bytes:
            if self.left and threading.get_ident() == self.caller:
                self.left -= 1
                if not self.left:
                    raise KeyboardInterrupt
            return super().read(size)

    for reads in range(1, 1000):
        source = Source(image_of_many_inodes)
        with ferrofs.Image(source, memory=32 << 20) as image:
            source.left = reads
            try:
                file = image.open("large")
                # The threads that decode need the interpreter's lock for each read of the source.
                # All of the file would take four threads up to two minutes, as the lock passes
                # from one to the next every microsecond.
                for start in (0, file.size // 2, file.size - 300_000):
                    file.seek(start)
                    for _ in range(6):
                        file.read(100_000)
            except KeyboardInterrupt:
                continue
            assert source.left, f"the interrupt of read {reads} is lost"
            return
    pytest.fail("the reads do not end")


def test_pread_leaves_the_position(image: ferrofs.Image, files: dict[str, bytes]) -> None:
    file = image.open("large")
    file.seek(77)

    def read(offset: int) -> bool:
        buffer = bytearray(5000)
        count = file.pread_into(buffer, offset)
        data = files["large"][offset : offset + 5000]
        return buffer[:count] == data and file.pread(5000, offset) == data

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(read, range(0, file.size, 40_000)))
    assert file.tell() == 77


def test_buffered_files_have_lines(image: ferrofs.Image, files: dict[str, bytes]) -> None:
    with image.open("lines.txt", buffering=-1) as file:
        assert isinstance(file, io.BufferedReader)
        assert list(file) == files["lines.txt"].splitlines(keepends=True)
    with image.open("lines.txt", buffering=16) as file:
        assert file.readline() == b"line 0\n"
    text = io.TextIOWrapper(image.open("lines.txt", buffering=-1))
    assert text.readlines()[999] == "line 999\n"


def test_only_reading_is_possible(image: ferrofs.Image) -> None:
    with pytest.raises(ValueError, match="mode"):
        image.open("empty", "w")
    with pytest.raises(io.UnsupportedOperation):
        image.open("empty").write(b"x")
    with pytest.raises(IsADirectoryError):
        image.open("docs")
    with pytest.raises(OSError, match="regular"):
        image.open("fifo")


def test_a_closed_file_holds_nothing_open(image: ferrofs.Image) -> None:
    with image.open("large") as file:
        opened = file._opened
        assert file.read(10)
    assert file.closed and file.size == 3_000_000 and "closed" in repr(file)
    file.close()
    with pytest.raises(ValueError, match="closed file"):
        opened.pread(1, 0)


def test_a_pickled_file_keeps_its_position(image: ferrofs.Image, files: dict[str, bytes]) -> None:
    file = image.open("large")
    file.seek(1234)
    copy = pickle.loads(pickle.dumps(file))
    assert copy.read(100) == files["large"][1234:1334]


class SlowFile(io.BytesIO):
    """Gives other threads a chance at each call."""

    calls = 0
    threads: set[int]

    def read(self, size: int | None = -1, /) -> bytes:
        self.calls += 1
        self.threads.add(threading.get_ident())
        threading.Event().wait(0.0005)
        return super().read(size)


@pytest.mark.thread_unsafe(reason="counts threads")
def test_a_python_object_is_read_by_decode_threads(
    image_file: Path, files: dict[str, bytes]
) -> None:
    """Readers and decode threads take turns at the object; the interpreter's lock does not stop
    them."""
    source = SlowFile(image_file.read_bytes())
    source.threads = set()
    image = ferrofs.Image(source, memory=24 << 20)
    with ThreadPoolExecutor(4) as threads:
        for _ in range(3):
            found = threads.map(image.read, ["large", "noise", "docs/deep/er/b.md", "large"])
            assert next(found) == files["large"]
            assert list(found)[-1] == files["large"]
        file = image.open("large")
        while file.read(65536):
            pass
    assert image.check() and source.calls > 0
    assert len(source.threads) > 1


class FailingFile(io.BytesIO):
    fails = False

    def read(self, size: int | None = -1, /) -> bytes:
        if self.fails:
            raise RuntimeError("the medium is gone")
        return super().read(size)


def test_an_exception_of_the_source_is_the_cause(image_file: Path) -> None:
    source = FailingFile(image_file.read_bytes())
    image = ferrofs.Image(source)
    source.fails = True
    with pytest.raises(OSError) as raised:
        image.read("noise")
    assert raised.value.errno == 5
    assert isinstance(raised.value.__cause__, RuntimeError)
    source.fails = False
    assert len(image.read("noise")) == 200_000


class BreaksContract(io.BytesIO):
    """Once `returns` is set, `read` returns something else than it should."""

    returns: Callable[[bytes], object] | None = None

    def read(self, size: int | None = -1, /) -> Any:
        data = super().read(size)
        return data if self.returns is None else type(self).returns(data)


@pytest.mark.parametrize(
    ("returns", "cause"),
    [
        (lambda data: data + bytes(2 << 20), "returned"),
        (lambda data: 5, "bytes-like"),
        (lambda data: 1 << 60, "bytes-like"),
        (lambda data: list(data), "bytes-like"),
        (lambda data: "text", "bytes-like"),
    ],
)
def test_a_source_that_returns_other_things_than_bytes(
    returns: Callable[[bytes], object], cause: str, image_file: Path, tmp_path: Path
) -> None:
    class Source(BreaksContract):
        pass

    image = ferrofs.Image(Source(image_file.read_bytes()))
    Source.returns = staticmethod(returns)
    with pytest.raises(ferrofs.ErofsError) as raised:
        image.read("noise")
    assert raised.value.errno == 5 and cause in str(raised.value.__cause__)
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("a"))
    with pytest.raises(ferrofs.ErofsError) as raised:
        ferrofs.build(Source(archive.getvalue()), tmp_path / "a.erofs", overwrite=True)
    assert cause in str(raised.value.__cause__)


@pytest.mark.parametrize("kind", [bytearray, memoryview, lambda data: array.array("B", data)])
def test_a_source_may_return_any_bytes(
    kind: Callable[[bytes], object], image_file: Path, files: dict[str, bytes]
) -> None:
    class Source(BreaksContract):
        returns = staticmethod(kind)

    image = ferrofs.Image(Source(image_file.read_bytes()))
    assert image.read("noise") == files["noise"] and image.check()
