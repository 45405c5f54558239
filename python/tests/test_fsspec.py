"""The file system of fsspec."""

from __future__ import annotations

import io
import os
import pickle
import re
import shutil
import tempfile
import time
import tracemalloc
from pathlib import Path
from typing import Any

import ferrofs
import pytest

fsspec = pytest.importorskip("fsspec")


@pytest.fixture
def fs(image_file: Path) -> Any:
    return fsspec.filesystem("erofs", fo=str(image_file))


def test_the_entry_point_is_registered(image_file: Path) -> None:
    assert fsspec.get_filesystem_class("erofs").__module__ == "ferrofs.fsspec"
    assert fsspec.get_filesystem_class("erofs").protocol == "erofs"


def test_exits_of_a_source_end_a_walk(tmp_path: Path) -> None:
    entries = [(f"d{one}/{'x' * 200}{two}", b"x" * 50) for one in range(8) for two in range(200)]
    output = Path(tempfile.mkdtemp(dir=tmp_path)) / "a.erofs"
    ferrofs.build(entries, output, None)

    class Source(io.BytesIO):
        raises = False

        def read(self, size: int | None = -1, /) -> bytes:
            if self.raises:
                raise KeyboardInterrupt
            return super().read(size)

    file = f"d7/{'x' * 200}9"
    for call in (
        lambda fs: list(fs.walk("")),
        lambda fs: fs.find(""),
        lambda fs: fs.find("d3", detail=True),
        lambda fs: fs.glob("**/x*"),
        lambda fs: fs.cat_ranges([file], 0, 10),
    ):
        source = Source(output.read_bytes())
        fs = fsspec.filesystem("erofs", fo=source)
        source.raises = True
        with pytest.raises(KeyboardInterrupt):
            call(fs)
        source.raises = False
        assert len(fs.find("")) == len(entries)


def test_a_path_need_not_be_text(image_file: Path, tmp_path: Path) -> None:
    path = os.fsencode(tempfile.mkdtemp(dir=tmp_path)) + b"/im\xff.erofs"
    shutil.copyfile(image_file, path)
    fs = fsspec.filesystem("erofs", fo=os.fsdecode(path))
    assert fs.cat_file("hello.txt") == b"hello, world\n" and fs.ukey("large")
    assert pickle.loads(pickle.dumps(fs)).cat_file("hello.txt") == b"hello, world\n"


def test_info_has_type_and_size(fs: Any) -> None:
    assert fs.info("")["type"] == "directory" and fs.info("/docs")["name"] == "docs"
    assert (fs.info("large")["size"], fs.info("large")["type"]) == (3_000_000, "file")
    link = fs.info("link")
    assert (link["type"], link["size"], link["islink"]) == ("file", 13, True)
    assert link["destination"] == "hello.txt"
    assert fs.info("dirlink")["type"] == "directory"
    assert fs.info("broken")["type"] == "link" and fs.info("fifo")["type"] == "other"
    with pytest.raises(FileNotFoundError):
        fs.info("nowhere")
    assert fs.modified("hello.txt").year == 2023
    assert fs.isfile("link") and fs.isdir("dirlink") and not fs.exists("broken")
    assert fs.size("large") == 3_000_000 and fs.ukey("large") != fs.ukey("noise")


def test_a_time_without_a_date_is_an_error_of_the_package(tmp_path: Path) -> None:
    output = Path(tempfile.mkdtemp(dir=tmp_path)) / "a.erofs"
    for seconds in (1 << 40, (1 << 63) - 1):
        ferrofs.build([ferrofs.Entry("a", data=b"", mtime_ns=0, uid=100_000)], output, overwrite=True)
        data = bytearray(output.read_bytes())
        at = ferrofs.Image(bytes(data)).stat("a").st_ino * 32 + 32
        data[1024 + 8] &= 0xFE  # no checksum
        data[at : at + 8] = seconds.to_bytes(8, "little")
        fs = fsspec.filesystem("erofs", fo=bytes(data))
        with pytest.raises(ferrofs.ErofsError, match="no date"):
            fs.modified("a")
        assert len(fs.find("", detail=True)) == 1


def test_listings_are_those_of_the_base_class(fs: Any) -> None:
    """`ls`, `walk`, `find` and `glob` are our own; those of fsspec give the same over `ls`."""
    base = fsspec.AbstractFileSystem
    for arguments in [{}, {"maxdepth": 1}, {"maxdepth": 2}, {"topdown": False}]:
        theirs = sorted((p, sorted(d), sorted(f)) for p, d, f in base.walk(fs, "", **arguments))
        # fsspec enters symlinks to directories, we do not.
        theirs = [one for one in theirs if not one[0].startswith("dirlink")]
        ours = sorted((p, sorted(d), sorted(f)) for p, d, f in fs.walk("", **arguments))
        assert ours == theirs, arguments
    for pattern in [
        "*", "**", "docs/**", "docs/*", "docs/*/", "**/*.md", "docs/deep/*/b.md", "*.txt",
        "[hl]*", "docs/d??p", "hello.txt", "nowhere/*", "nowhere", "docs/**/er", "*/", "docs/",
    ]:
        theirs = [n for n in base.glob(fs, pattern) if not n.startswith("dirlink/")]
        assert fs.glob(pattern) == theirs, pattern
        assert list(fs.glob(pattern, detail=True)) == theirs, pattern
    assert fs.glob("**", maxdepth=1) == base.glob(fs, "**", maxdepth=1)
    for path in ["", "docs", "docs/a.md", "nowhere"]:
        for withdirs in (False, True):
            theirs = [n for n in base.find(fs, path, withdirs=withdirs)
                      if not n.startswith("dirlink/")]
            assert fs.find(path, withdirs=withdirs) == theirs, path
            assert list(fs.find(path, withdirs=withdirs, detail=True)) == theirs, path
    with pytest.raises(ValueError):
        fs.glob("*", maxdepth=0)
    with pytest.raises(FileNotFoundError):
        list(fs.walk("nowhere", on_error="raise"))
    failed: list[OSError] = []
    assert list(fs.walk("nowhere", on_error=failed.append)) == [] and len(failed) == 1


def test_contents_and_ranges(fs: Any, files: dict[str, bytes]) -> None:
    large = files["large"]
    assert fs.cat("docs/a.md") == b"# A\n" and fs.cat_file("link") == files["hello.txt"]
    assert fs.cat_file("large", 10, 20) == large[10:20]
    assert fs.cat_file("large", -20, -10) == large[-20:-10]
    assert fs.cat_file("large", 2_999_990) == large[2_999_990:]
    ranges = fs.cat_ranges(["large", "noise", "nowhere"], [0, 5, 0], [7, 9, 1])
    assert ranges[:2] == [large[:7], files["noise"][5:9]]
    assert isinstance(ranges[2], FileNotFoundError)
    with pytest.raises(FileNotFoundError):
        fs.cat_ranges(["nowhere"], 0, 1, on_error="raise")
    assert fs.cat(["hello.txt", "empty"]) == {"hello.txt": files["hello.txt"], "empty": b""}
    assert fs.head("large", 5) == large[:5] and fs.tail("large", 5) == large[-5:]
    with fs.open("lines.txt") as file:
        assert file.readline() == b"line 0\n" and file.read(5) == b"line "
    with fs.open("lines.txt", "r") as text:
        assert text.readline() == "line 0\n"
    with pytest.raises(ValueError, match="read-only"):
        fs._open("x", "wb")
    with pytest.raises(ValueError, match="mode"):
        fsspec.filesystem("erofs", fo="x", mode="w")


def test_instances_are_pickled_by_their_arguments(fs: Any, files: dict[str, bytes]) -> None:
    text = pickle.dumps(fs)
    assert len(text) < 1000
    assert pickle.loads(text).cat("noise") == files["noise"]
    with fs.open("large") as file:
        assert isinstance(file, io.BufferedReader)


def test_a_closed_file_system_refuses(image_file: Path) -> None:
    for source in (str(image_file), image_file.read_bytes()):
        fs = fsspec.filesystem("erofs", fo=source)
        text = pickle.dumps(fs)
        fs.close()
        for call in (lambda: fs.find(""), lambda: fs.exists("large"), lambda: fs.open("large")):
            with pytest.raises(ValueError, match="closed file system"):
                call()
        fs.close()
        assert pickle.loads(text).cat("hello.txt") == b"hello, world\n"


def test_urls_are_chained(image_file: Path, files: dict[str, bytes], tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe("/chained.erofs", image_file.read_bytes())
    try:
        for chain in [
            f"erofs://large::{image_file}",
            f"erofs://large::file://{image_file}",
            "erofs://large::memory://chained.erofs",
            "erofs://large::simplecache::memory://chained.erofs",
        ]:
            options = {"simplecache": {"cache_storage": str(tmp_path)}} if "simple" in chain else {}
            with fsspec.open(chain, **options) as file:
                assert file.read() == files["large"], chain
        fs, path = fsspec.core.url_to_fs("erofs://docs::memory://chained.erofs")
        assert fs.find(path) == [n for n in sorted(files) if n.startswith("docs/")]
        assert pickle.loads(pickle.dumps(fs)).cat("noise") == files["noise"]
        fs.close()
    finally:
        memory.rm("/chained.erofs")


def many_files(directory: Path, count: int) -> Path:
    """An image of empty files, 100 in a directory."""
    output = directory / f"{count}.erofs"
    names = (f"dir{n // 100:04}/file{n % 100:02}.{'txt' if n % 2 else 'bin'}" for n in range(count))
    ferrofs.build(((name, b"") for name in names), output, None)
    return output


@pytest.mark.thread_unsafe(reason="measures")
def test_listings_take_time_in_proportion(tmp_path: Path) -> None:
    """Ten times as many files take ten times as long; a call does not read the whole image. The
    limits are generous, as other processes run; docs/python.md has the figures."""
    seconds: dict[str, list[float]] = {}
    for count in (3_000, 30_000):
        fs = fsspec.filesystem("erofs", fo=str(many_files(tmp_path, count)))
        calls = {
            "walk": lambda: sum(len(files) for _, _, files in fs.walk("")),
            "find": lambda: len(fs.find("")),
            "glob": lambda: 2 * len(fs.glob("**/*.txt")),
        }
        for name, call in calls.items():
            began = time.process_time()
            assert call() == count
            seconds.setdefault(name, []).append(time.process_time() - began)
        began = time.process_time()
        for n in range(0, count, count // 100):
            fs.info(f"dir{n // 100:04}/file{n % 100:02}.bin" if n % 2 == 0 else f"dir{n // 100:04}")
            fs.ls(f"dir{n // 100:04}")
        seconds.setdefault("info and ls", []).append((time.process_time() - began) * count / 100)
    for name, (small, large) in seconds.items():
        assert large / 30_000 < 4 * small / 3_000 + 1e-5, (name, seconds)


@pytest.mark.thread_unsafe(reason="measures")
def test_walks_take_time_in_proportion_to_the_depth(tmp_path: Path) -> None:
    """As that of the image."""
    seconds: dict[str, list[float]] = {}
    for depth in (1_000, 4_000):
        ferrofs.build([("/".join(["d"] * depth), None)], tmp_path / "a.erofs", overwrite=True)
        fs = fsspec.filesystem("erofs", fo=str(tmp_path / "a.erofs"))
        for detail in (False, True):
            began = time.process_time()
            assert sum(1 for _ in fs.walk("", detail=detail)) == depth + 1
            seconds.setdefault(str(detail), []).append(time.process_time() - began)
    for name, (small, large) in seconds.items():
        assert large < 3 * 4 * small + 0.1, (name, seconds)


@pytest.mark.thread_unsafe(reason="measures")
def test_a_glob_keeps_matches_only(tmp_path: Path) -> None:
    fs = fsspec.filesystem("erofs", fo=str(many_files(tmp_path, 30_000)))
    tracemalloc.start()
    try:
        assert len(fs.glob("**/file01.txt")) == 300
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


def test_a_directory_that_cannot_be_read_is_not_left_out(tmp_path: Path) -> None:
    scratch = Path(tempfile.mkdtemp(dir=tmp_path))
    output = scratch / "a.erofs"
    ferrofs.build([(f"d{one}/f{two}", b"x") for one in range(3) for two in range(5)], output, None)
    data = bytearray(output.read_bytes())
    data[1024 + 8] &= 0xFE  # no checksum
    # The third entry, after `.` and `..`; the first one says where the names begin.
    third = data.index(ferrofs.Image(data).stat("d1/f0").st_ino.to_bytes(8, "little"))
    data[third - 24 + 8] ^= 0xFF
    fs = fsspec.filesystem("erofs", fo=bytes(data))
    assert [path for path, _, _ in fs.walk("")] == ["", "d0", "d2"]
    for call in (
        lambda: fs.find(""),
        lambda: fs.find("", detail=True),
        lambda: fs.glob("**"),
        lambda: fs.glob("d*/f*"),
        lambda: fs.du(""),
        lambda: fs.get("", str(scratch / "copy"), recursive=True),
    ):
        with pytest.raises(ferrofs.CorruptImageError, match="directory block"):
            call()
    assert len(fs.find("d0")) == 5 and fs.glob("d2/*4") == ["d2/f4"]
    for path in ("nowhere", "d0/f0/x"):
        assert fs.find(path) == [] == fs.glob(f"{path}/*")


def test_a_directory_below_itself_is_entered_once(tmp_path: Path) -> None:
    image = tmp_path / "loop.erofs"
    ferrofs.build([("a/b/file", b"x")], image)
    with ferrofs.Image(image) as sound:
        outer, inner = (sound.stat(path).st_ino for path in ["a", "a/b"])
    data = bytearray(image.read_bytes())
    data[1024 + 8] &= 0xFE  # no checksum
    # Of an entry: the nid, where its name is, and the type of a directory.
    entry = re.escape(inner.to_bytes(8, "little")) + rb"(..\x02\x00)"
    changed, count = re.subn(entry, outer.to_bytes(8, "little") + rb"\1", bytes(data), flags=re.S)
    assert count == 2
    image.write_bytes(changed)
    fs = fsspec.filesystem("erofs", fo=str(image))
    assert [path for path, _, _ in fs.walk("")] == ["", "a"]
    for call in (
        lambda: fs.find("", withdirs=True),
        lambda: fs.find("", withdirs=True, detail=True),
        lambda: fs.glob("**"),
        lambda: list(fs.walk("", on_error="raise")),
    ):
        with pytest.raises(ferrofs.CorruptImageError, match="the same directory"):
            call()
    with ferrofs.Image(image) as damaged, pytest.raises(ferrofs.CorruptImageError):
        list(damaged.walk())
