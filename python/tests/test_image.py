"""Names, contents and metadata of an image."""

from __future__ import annotations

import contextlib
import errno
import gc
import io
import os
import pickle
import re
import shutil
import stat
import tempfile
import threading
import time
import weakref
import zipfile
from collections.abc import Callable
from pathlib import Path

import ferrofs
import pytest


def test_names_are_those_of_zipfile(image: ferrofs.Image, files: dict[str, bytes]) -> None:
    names = image.namelist()
    assert set(files) <= set(names)
    assert {"docs/", "docs/deep/", "docs/deep/er/", "empty-dir/"} <= set(names)
    assert [info.filename for info in image.infolist()] == names
    for name in ("namelist", "infolist", "getinfo", "read", "open", "extract", "extractall"):
        assert hasattr(zipfile.ZipFile, name) and hasattr(image, name)


def test_every_file_has_its_content(image: ferrofs.Image, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        assert image.read(name) == data, name
        assert image.read("/" + name) == data, name
        assert image.read(os.fsencode(name)) == data, name
        info = image.getinfo(name)
        assert (info.file_size, info.is_file()) == (len(data), True)
        assert image.read(info) == data
        assert info.mtime_ns == 1_700_000_000_123_456_789
        assert info.date_time == (2023, 11, 14, 22, 13, 20)


def test_a_range_ends_with_the_file(image: ferrofs.Image, files: dict[str, bytes]) -> None:
    data = files["large"]
    for offset, size in [(0, 10), (999_999, 70_000), (len(data) - 5, 100), (len(data) + 9, 4)]:
        assert image.read_range("large", offset, size) == data[offset : offset + size]


def test_symlinks_are_followed_within_the_image(image: ferrofs.Image) -> None:
    assert image.read("link") == b"hello, world\n"
    assert image.read("absolute") == image.read("up") == b"# A\n"
    assert image.read("dirlink/er/b.md") == b"# B\n" * 5000
    assert image.read("dirlink/../a.md") == b"# A\n"
    assert image.readlink("link") == "hello.txt"
    assert stat.S_ISLNK(image.lstat("link").st_mode)
    assert stat.S_ISREG(image.stat("link").st_mode)
    with pytest.raises(OSError, match="too many levels") as raised:
        image.stat("loop")
    assert raised.value.errno == 40


def test_stat_has_every_field(image: ferrofs.Image) -> None:
    status = image.stat("hello.txt")
    assert (status.st_nlink, status.st_size) == (2, 13)
    assert status.st_mtime_ns == status.st_ctime_ns == 1_700_000_000_123_456_789
    assert status.st_ino == image.stat("hard").st_ino
    assert image.lstat("null").st_rdev == os.makedev(1, 3)
    fifo = image.lstat("fifo")
    assert (stat.filemode(fifo.st_mode), fifo.st_uid, fifo.st_gid) == ("prw-------", 1000, 100)


def test_extended_attributes(image: ferrofs.Image) -> None:
    assert image.listxattr("tagged") == ["user.colour", "user.n"]
    assert image.getxattr("tagged", "user.n") == b"\0\1"
    assert image.listxattr("hello.txt") == []
    with pytest.raises(OSError) as raised:
        image.getxattr("tagged", "user.none")
    assert raised.value.errno == 61


def test_questions_of_state(image: ferrofs.Image) -> None:
    assert image.exists("docs/a.md") and image.exists("") and image.exists("link")
    assert not image.exists("broken") and not image.isdir("loop") and not image.exists("hello.txt/x")
    assert image.isdir("dirlink") and not image.isdir("link")
    assert image.isfile("link") and not image.isfile("fifo")


def test_scandir_is_that_of_os(image: ferrofs.Image) -> None:
    with image.scandir("/") as entries:
        found = {entry.name: entry for entry in entries}
    assert list(found) == image.listdir()
    assert found["dirlink"].is_symlink() and found["dirlink"].is_dir()
    assert not found["dirlink"].is_dir(follow_symlinks=False)
    assert not found["broken"].is_dir() and not found["broken"].is_file()
    assert found["hello.txt"].stat().st_size == 13
    assert found["link"].stat(follow_symlinks=False).st_size == len("hello.txt")
    assert found["hello.txt"].inode() == found["hard"].inode()
    assert os.fspath(found["docs"]) == "/docs"


def test_walk_is_that_of_os(image: ferrofs.Image, tmp_path: Path) -> None:
    image.extractall(tmp_path)

    def relative(walked: object, top: str) -> list[tuple[str, list[str], list[str]]]:
        parts = [(p[len(top) :].strip("/"), sorted(d), sorted(f)) for p, d, f in walked]  # type: ignore[attr-defined]
        return sorted(parts)

    os.unlink(tmp_path / "null") if (tmp_path / "null").exists() else None
    for followlinks in (False, True):
        theirs = relative(os.walk(tmp_path, followlinks=followlinks), str(tmp_path))
        ours = relative(image.walk("/", followlinks=followlinks), "/")
        ours = [(p, d, [n for n in f if n != "null"]) for p, d, f in ours]
        assert ours == theirs
    bottom_up = [path for path, _, _ in image.walk("docs", topdown=False)]
    assert bottom_up == ["docs/deep/er", "docs/deep", "docs"]


@pytest.mark.thread_unsafe(reason="measures")
def test_walks_take_time_in_proportion_to_the_depth(tmp_path: Path) -> None:
    """The limits are generous, as other processes run."""
    seconds: dict[str, list[float]] = {}
    for depth in (1_000, 4_000):
        ferrofs.build([("/".join(["d"] * depth), None)], tmp_path / "a.erofs", overwrite=True)
        image = ferrofs.Image(tmp_path / "a.erofs")
        calls: dict[str, Callable[[], int]] = {
            "namelist": lambda image=image: len(image.namelist()),  # type: ignore[misc]
            "infolist": lambda image=image: len(image.infolist()),  # type: ignore[misc]
            "walk": lambda image=image: sum(1 for _ in image.walk()) - 1,  # type: ignore[misc]
        }
        for name, call in calls.items():
            began = time.process_time()
            assert call() == depth
            seconds.setdefault(name, []).append(time.process_time() - began)
    for name, (small, large) in seconds.items():
        assert large < 3 * 4 * small + 0.1, (name, seconds)


def test_walk_enters_what_the_caller_adds(image: ferrofs.Image) -> None:
    seen = []
    for path, directories, _ in image.walk(""):
        seen.append(path)
        directories[:] = [] if path else ["docs/deep"]
    assert seen == ["", "docs/deep"]


def test_walk_leaves_out_what_the_caller_removes(image: ferrofs.Image) -> None:
    seen = []
    for path, directories, _ in image.walk("docs"):
        seen.append(path)
        directories[:] = [name for name in directories if name != "deep"]
    assert seen == ["docs"]
    errors: list[OSError] = []
    assert list(image.walk("nowhere", onerror=errors.append)) == []
    assert len(errors) == 1


def test_check_finds_nothing_in_a_good_image(
    image: ferrofs.Image, files: dict[str, bytes]
) -> None:
    calls: list[tuple[str, int, int]] = []
    result = image.check(progress=lambda *done: calls.append(done))
    assert result and result.problems == []
    assert result.bytes >= sum(map(len, files.values()))
    assert calls[0] == ("check", 0, 0) and calls[-1][2] == result.bytes
    result.raise_for_problems()


def test_check_refuses_a_path_that_leads_nowhere(image: ferrofs.Image) -> None:
    for path in ("nope", "/docs/none", b"dirlink/none", "broken/x"):
        with pytest.raises(ferrofs.NotFoundError) as missing:
            image.check(path)
        assert missing.value.path == os.fsdecode(path)
    for path in ("large/x", "/link/x"):
        with pytest.raises(NotADirectoryError):
            image.check(path)
    with pytest.raises(OSError) as loop:
        image.check("loop/x")
    assert loop.value.errno == errno.ELOOP
    whole = image.check()
    assert image.check("") == image.check("docs/..") == whole
    deep = image.check("docs/deep")
    assert deep and 1 < deep.inodes < whole.inodes
    assert image.check("dirlink/../deep") == image.check("dirlink/er/..") == deep
    assert image.check("dirlink").inodes == image.check("broken").inodes == 1


def test_check_reports_damage_with_its_place(image_file: Path, tmp_path: Path) -> None:
    data = bytearray(image_file.read_bytes())
    at = data.index(b"word", len(data) // 2) if b"word" in data[len(data) // 2 :] else 100_000
    for position in range(at, at + 3000):
        data[position] ^= 0x5A
    with ferrofs.Image(data) as image:
        result = image.check()
        assert not result and result.problem_count >= 1
        problem = result.problems[0]
        assert isinstance(problem, ferrofs.CorruptImageError)
        assert problem.errno == 117 and problem.path and problem.nid is not None
        assert problem.byte is not None
        with pytest.raises(ferrofs.CheckError) as raised:
            result.raise_for_problems()
        assert raised.value.problems == result.problems


def test_a_callback_cancels(image: ferrofs.Image, tmp_path: Path) -> None:
    with pytest.raises(ferrofs.CancelledError):
        image.check(progress=lambda *_: False)
    with pytest.raises(ZeroDivisionError):
        image.extractall(tmp_path / "x", progress=lambda *_: 1 / 0)


def test_nothing_is_left_to_cancel_at_the_end(image: ferrofs.Image, tmp_path: Path) -> None:
    # Threads that run this test share `tmp_path`.
    target = tempfile.mkdtemp(dir=tmp_path)
    for work in (image.check, lambda progress: image.extractall(target, progress=progress)):
        # A call in between, on a busy machine, does cancel.
        for _ in range(20):
            calls: list[object] = []

            def progress(*done: object, calls: list[object] = calls) -> bool:
                calls.append(done)
                return len(calls) == 1

            try:
                assert work(progress=progress)
            except ferrofs.CancelledError:
                continue
            assert len(calls) == 2
            break
        else:
            pytest.fail("the last call cancels")
    with pytest.raises(ZeroDivisionError):
        image.check(progress=lambda _, entries, size: 1 / (size == 0))


def test_extract_writes_members_only(
    image: ferrofs.Image, files: dict[str, bytes], tmp_path: Path
) -> None:
    assert image.extract("docs/a.md", tmp_path) == str(tmp_path / "docs/a.md")
    assert [str(p.relative_to(tmp_path)) for p in sorted(tmp_path.rglob("*"))] == [
        "docs",
        "docs/a.md",
    ]
    image.extractall(tmp_path / "all")
    for name, data in files.items():
        assert (tmp_path / "all" / name).read_bytes() == data
    assert os.readlink(tmp_path / "all/absolute") == "/docs/a.md"
    assert not (tmp_path / "all/null").exists()
    with pytest.raises(FileNotFoundError):
        image.extract("nowhere", tmp_path)


def test_a_directory_that_exists_keeps_its_metadata(tmp_path: Path) -> None:
    # Threads that run this test share `tmp_path`.
    scratch = Path(tempfile.mkdtemp(dir=tmp_path))
    root = ferrofs.Entry("/", mode=stat.S_IFDIR | 0o750, mtime_ns=7_000_000_000)
    ferrofs.build([root, ("a", b"a"), ("d/b", b"b")], scratch / "a.erofs")
    image = ferrofs.Image(scratch / "a.erofs")

    def extracted(exists: bool, members: list[str] | None, **options: bool) -> tuple[int, bool]:
        target = Path(tempfile.mkdtemp(dir=scratch))
        target.chmod(0o1777)
        if not exists:
            target.rmdir()
        image.extractall(target, members, **options)
        status = target.stat()
        return stat.S_IMODE(status.st_mode), status.st_mtime_ns == 7_000_000_000

    for members in (None, ["a"], ["d"]):
        assert extracted(True, members) == (0o1777, False)
        assert extracted(False, members) == (0o750, True)
        assert extracted(True, members, root_metadata=True) == (0o750, True)
        assert extracted(False, members, root_metadata=False) == (0o700, False)
    target = Path(tempfile.mkdtemp(dir=scratch))
    target.chmod(0o1777)
    image.extract("a", target)
    assert stat.S_IMODE(target.stat().st_mode) == 0o1777


def test_extract_takes_names_as_they_are(tmp_path: Path) -> None:
    special = ["*", "**", "a?", "[ab]", "{a,b}", "a\\*", "a["]
    plain = ["a", "b", "ab", "sub/a"]
    entries = [(name, name.encode()) for name in [*special, *plain]]
    # Threads that run this test share `tmp_path`.
    scratch = Path(tempfile.mkdtemp(dir=tmp_path))
    ferrofs.build(entries, scratch / "a.erofs")
    image = ferrofs.Image(scratch / "a.erofs")
    for number, name in enumerate(special):
        one, all_of_it = scratch / f"one{number}", scratch / f"all{number}"
        one.mkdir()
        (one / "a").write_bytes(b"mine")
        assert image.extract(name, one) == str(one / name)
        assert sorted(os.listdir(one)) == sorted([name, "a"])
        assert (one / name).read_bytes() == name.encode() and (one / "a").read_bytes() == b"mine"
        image.extract(image.getinfo(name), one)
        image.extractall(all_of_it, [name])
        assert os.listdir(all_of_it) == [name]
    with pytest.raises(ferrofs.ExtractError, match="nothing in the image") as missing:
        image.extractall(scratch / "none", ["sub/*", "a"])
    assert missing.value.errno == errno.ENOENT and os.listdir(scratch / "none") == ["a"]


def test_errors_are_those_of_the_system(image: ferrofs.Image, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as missing:
        image.read("docs/none")
    error = missing.value
    assert isinstance(error, ferrofs.NotFoundError) and isinstance(error, KeyError)
    assert (error.errno, error.path, error.filename) == (2, "docs/none", "docs/none")
    assert str(error).startswith("[Errno 2]")
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.errno, copy.path, str(copy)) == (2, "docs/none", str(error))
    with pytest.raises(NotADirectoryError):
        image.listdir("hello.txt/x")
    with pytest.raises(NotADirectoryError):
        image.listdir("hello.txt")
    with pytest.raises(IsADirectoryError):
        image.read("docs")
    (tmp_path / "text").write_bytes(b"no image" * 1000)
    with pytest.raises(ferrofs.NotAnImageError) as foreign:
        ferrofs.Image(tmp_path / "text")
    assert foreign.value.path == str(tmp_path / "text") and foreign.value.byte == 1024
    with pytest.raises(FileNotFoundError):
        ferrofs.Image(tmp_path / "none")
    with pytest.raises(TypeError):
        ferrofs.Image(7)  # type: ignore[arg-type]


@pytest.fixture
def one_file(tmp_path: Path) -> Callable[[int, int], ferrofs.Image]:
    """An image with `file`, whose inode has another size and time than it should."""
    output = Path(tempfile.mkdtemp(dir=tmp_path)) / "a.erofs"
    # With an owner like this, an inode has 64 bytes.
    ferrofs.build([ferrofs.Entry("file", data=b"x" * 100_000, uid=100_000)], output, None)
    sound = output.read_bytes()
    at = ferrofs.Image(sound).stat("file").st_ino * 32

    def changed(size: int, seconds: int) -> ferrofs.Image:
        data = bytearray(sound)
        data[1024 + 8] &= 0xFE  # no checksum
        data[at + 8 : at + 16] = size.to_bytes(8, "little")
        data[at + 32 : at + 40] = seconds.to_bytes(8, "little")
        return ferrofs.Image(data)

    return changed


def test_a_size_that_no_memory_has_is_an_error_of_the_package(
    one_file: Callable[[int, int], ferrofs.Image],
) -> None:
    for size in ((1 << 63) - 1, (1 << 63) - 40):
        image = one_file(size, 0)
        info = image.getinfo("file")
        assert info.file_size == size
        for call in (
            lambda image=image: image.read("file"),
            lambda image=image, info=info: image.read(info),
            lambda image=image: image.open("file").read(),
            lambda image=image: image.open("file", buffering=-1).read(),
        ):
            with pytest.raises(ferrofs.ErofsError, match="no memory for") as raised:
                call()
            assert (raised.value.errno, raised.value.path) == (errno.ENOMEM, "file")


def test_a_time_without_a_date_is_an_error_of_the_package(
    one_file: Callable[[int, int], ferrofs.Image],
) -> None:
    for seconds in (1 << 62, (1 << 63) - 1):
        info = one_file(100_000, seconds).getinfo("file")
        assert info.mtime_ns == seconds * 1_000_000_000
        with pytest.raises(ferrofs.ErofsError, match="no date") as raised:
            assert info.date_time
        assert (raised.value.errno, raised.value.path) == (errno.EOVERFLOW, "file")


def test_an_inode_outside_of_the_image_is_damage(image_file: Path) -> None:
    data = bytearray(image_file.read_bytes())
    data[1024 + 8] &= 0xFE  # no checksum
    nid = ferrofs.Image(data).stat("fifo").st_ino
    # Of an entry: the nid, where its name is, and the type.
    entry = re.escape(nid.to_bytes(8, "little")) + rb"(..\x05\x00)"
    outside = (len(data) // 32 + 5).to_bytes(8, "little")
    changed, count = re.subn(entry, outside + rb"\1", bytes(data), flags=re.S)
    assert count == 1
    image = ferrofs.Image(changed)
    with pytest.raises(ferrofs.CorruptImageError) as raised:
        image.stat("fifo")
    assert type(raised.value) is ferrofs.CorruptImageError and raised.value.errno == 117
    with pytest.raises(ferrofs.NotAnImageError):
        ferrofs.Image(data[:1030])


def test_a_closed_image_refuses(image_file: Path) -> None:
    with ferrofs.Image(image_file) as image:
        file = image.open("large")
        assert not image.closed
    assert image.closed and "closed" in repr(image)
    with pytest.raises(ValueError, match="closed"):
        image.namelist()
    with pytest.raises(ValueError, match="closed"):
        file.read(1)


def test_superblock_and_memory(image_file: Path) -> None:
    image = ferrofs.Image(image_file, memory=32 << 20)
    assert image.superblock.label == "test" and image.superblock.block_size == 4096
    assert image.filename == str(image_file)
    with pytest.raises(OSError, match="memory limit"):
        ferrofs.Image(image_file, memory=1)


@pytest.mark.parametrize("name", ["plain", "48bit", "dot-omitted", "metabox-lz4-prefix"])
def test_the_time_of_an_image_is_that_of_its_build(name: str) -> None:
    data = Path(__file__).parents[2] / "tests/data"
    if not data.is_dir():
        pytest.skip("the images of the repository are not there")
    # Images with 48-bit addresses state it as seconds after an epoch.
    with ferrofs.Image(data / f"{name}.erofs") as image:
        assert image.superblock.timestamp == 1_710_000_000


def open_files() -> list[str]:
    paths = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            paths.append(os.readlink(f"/proc/self/fd/{number}"))
    return paths


@pytest.mark.thread_unsafe(reason="looks at the descriptors of the process")
def test_a_closed_image_keeps_no_file_open(image_file: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.erofs"
    copy.write_bytes(image_file.read_bytes())
    with ferrofs.Image(copy) as image:
        assert image.read("hello.txt") and str(copy) in open_files()
    assert str(copy) not in open_files()
    with pytest.raises(ValueError, match="closed image"):
        image.read("hello.txt")

    # Files of it do not keep it open, whether they are closed or not.
    image = ferrofs.Image(copy)
    files = [image.open("large") for _ in range(40)]
    assert all(file.read(100_000) for file in files)
    for file in files[:20]:
        file.close()
        file.close()
    image.close()
    # Decode threads may read ahead for some moments.
    deadline = time.monotonic() + 20
    while str(copy) in open_files() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert str(copy) not in open_files()
    for number, file in enumerate(files):
        assert file.closed == (number < 20)
        with pytest.raises(ValueError, match="closed"):
            file.read(1)

    class Source(io.BytesIO):
        pass

    source = Source(image_file.read_bytes())
    reference = weakref.ref(source)
    image = ferrofs.Image(source)
    native = image._native
    image.close()
    del image, source
    gc.collect()
    assert reference() is None and native.closed


@pytest.mark.thread_unsafe(reason="collects garbage")
def test_a_source_that_refers_to_its_image_is_collected(image_file: Path) -> None:
    class Source(io.BytesIO):
        owner: object = None

    data = image_file.read_bytes()
    for kind in ("image", "file", "native file", "native image"):
        source = Source(data)
        image = ferrofs.Image(source)
        file = image.open("large")
        assert file.read(100_000)
        source.owner = {
            "image": image,
            "file": file,
            "native file": file._opened,
            "native image": image._native,
        }[kind]
        reference = weakref.ref(source)
        del source
        # As long as one of them is used, all of them are there.
        gc.collect()
        assert image.read("hello.txt") == b"hello, world\n" and file.read(1)
        del image
        gc.collect()
        assert reference() is not None and file.read(1)
        del file
        deadline = time.monotonic() + 20
        while reference() is not None and time.monotonic() < deadline:
            gc.collect()
            time.sleep(0.01)
        assert reference() is None, kind


def test_an_extraction_ends_at_its_limits(image: ferrofs.Image, tmp_path: Path) -> None:
    with pytest.raises(ferrofs.ErofsError, match="limit of 1000 bytes") as raised:
        image.extractall(tmp_path / "output", max_output=1000)
    assert raised.value.errno == errno.EFBIG
    # Every attribute counts as work.
    with pytest.raises(ferrofs.ErofsError, match="limit of 1 bytes of repeated work") as raised:
        image.extractall(tmp_path / "work", ["tagged"], preserve=True, max_work=1)
    assert raised.value.errno == errno.EFBIG
    assert not isinstance(raised.value, ferrofs.CorruptImageError)
    assert image.extractall(tmp_path / "all", max_output=1 << 40, max_work=1 << 40) > 0


def test_sources_of_every_kind(image_file: Path, files: dict[str, bytes]) -> None:
    data = image_file.read_bytes()
    with open(image_file, "rb") as opened, open(image_file, "rb", buffering=0) as raw:
        sources = [
            (str(image_file), 0),
            (os.fsencode(image_file) and image_file, 0),
            (data, 0),
            (memoryview(data), 0),
            (io.BytesIO(data), 0),
            (opened, 0),
            (raw, 0),
            (b"\0" * 512 + data, 512),
            (io.BytesIO(b"\0" * 512 + data), 512),
        ]
        for source, offset in sources:
            image = ferrofs.Image(source, offset)
            assert image.read("large") == files["large"]
            assert image.check()


def test_a_file_that_was_just_written_is_whole(image_file: Path, files: dict[str, bytes]) -> None:
    data = image_file.read_bytes()
    with tempfile.TemporaryFile() as file:
        # The end stays in the buffer.
        for start in range(0, len(data), 1000):
            file.write(data[start : start + 1000])
        image = ferrofs.Image(file)
        assert image.read("large") == files["large"] and image.check()
    with open(image_file, "rb") as read_only:
        assert ferrofs.Image(read_only).check()


class RaisingSource(io.BytesIO):
    """Raises once `raises` is set."""

    raises: BaseException | None = None

    def read(self, size: int | None = -1, /) -> bytes:
        if self.raises is not None:
            raise self.raises
        return super().read(size)


@pytest.fixture
def large_image(image_file: Path, tmp_path: Path) -> bytes:
    """An image whose directories lie far apart, so that listing one needs a read."""
    entries: list[tuple[str, bytes]] = []
    for folder in range(8):
        entries += [(f"d{folder}/{'x' * 200}{number}", b"x" * 50) for number in range(200)]
    output = Path(tempfile.mkdtemp(dir=tmp_path)) / "a.erofs"
    ferrofs.build(entries, output, None)
    return output.read_bytes()


def calls_of(image: ferrofs.Image, target: Path) -> dict[str, Callable[[], object]]:
    """What reads an image."""
    return {
        "namelist": image.namelist,
        "infolist": image.infolist,
        "walk": lambda: list(image.walk()),
        "walk below": lambda: list(image.walk("/d3", onerror=lambda error: None)),
        "listdir": lambda: image.listdir("d5"),
        "exists": lambda: image.exists(f"d6/{'x' * 200}7"),
        "read": lambda: image.read(f"d7/{'x' * 200}9"),
        "open": lambda: image.open(f"d7/{'x' * 200}9").read(),
        "check": image.check,
        "extractall": lambda: image.extractall(target),
    }


class OtherExit(BaseException):
    """As `asyncio.CancelledError` or `trio.Cancelled`."""


@pytest.mark.parametrize("exit", [KeyboardInterrupt, SystemExit, GeneratorExit, OtherExit])
def test_exits_of_a_source_are_raised_as_they_are(
    exit: type[BaseException], large_image: bytes, tmp_path: Path
) -> None:
    names = calls_of(ferrofs.Image(large_image), tmp_path)
    for name in names:
        source = RaisingSource(large_image)
        image = ferrofs.Image(source)
        source.raises = exit("now")
        # Threads that run this test share `tmp_path`.
        target = Path(tempfile.mkdtemp(dir=tmp_path))
        with pytest.raises(exit, match="now"):
            calls_of(image, target)[name]()
        source.raises = None
        assert image.check(), name


def test_exceptions_of_a_source_are_causes(large_image: bytes, tmp_path: Path) -> None:
    source = RaisingSource(large_image)
    image = ferrofs.Image(source)
    source.raises = ValueError("broken")
    for name, call in calls_of(image, Path(tempfile.mkdtemp(dir=tmp_path))).items():
        if name in ("walk", "walk below", "check"):
            continue
        with pytest.raises(ferrofs.ErofsError) as raised:
            call()
        assert raised.value.errno == 5 or name == "extractall"
        if name != "extractall":
            assert raised.value.__cause__ is source.raises, name
    failed: list[OSError] = []
    for _ in image.walk(onerror=failed.append):
        pass
    result = image.check()
    assert not result
    for error in [*failed, *result.problems]:
        assert error.__cause__ is source.raises
    assert failed


def test_threads_read_at_once(image: ferrofs.Image, files: dict[str, bytes]) -> None:
    wrong: list[str] = []

    def read_all() -> None:
        wrong.extend(name for name, data in files.items() if image.read(name) != data)

    threads = [threading.Thread(target=read_all) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []


@pytest.mark.parametrize("name", [b"im\xff.erofs", "bild-ü.erofs".encode(), b"https-\xfe.erofs"])
def test_a_path_need_not_be_text(image_file: Path, tmp_path: Path, name: bytes) -> None:
    path = os.fsencode(tempfile.mkdtemp(dir=tmp_path)) + b"/" + name
    shutil.copyfile(image_file, path)
    text = os.fsdecode(path)
    for source in (text, Path(text)):
        image = ferrofs.Image(source)
        assert image.read("hello.txt") == b"hello, world\n" and image.filename == text
        copy = pickle.loads(pickle.dumps(image))
        assert copy.filename == text and copy.read("hello.txt") == b"hello, world\n"
        assert repr(image).startswith("<ferrofs.Image ")
    os.unlink(path)
    with pytest.raises(FileNotFoundError) as missing:
        ferrofs.Image(text)
    assert missing.value.path == text
    with pytest.raises(UnicodeEncodeError):
        ferrofs.Image("\ud800")


@pytest.mark.thread_unsafe(reason="changes the environment")
def test_a_url_needs_the_fetcher(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FERROFS_FETCH", str(tmp_path / "none"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    url = "https://127.0.0.1:9/a.erofs"
    with pytest.raises(ferrofs.RemoteError, match="ferrofs-fetch") as raised:
        ferrofs.Image(url)
    assert (raised.value.errno, raised.value.path) == (2, url)
    assert not isinstance(raised.value, FileNotFoundError)


def test_read_takes_infos_of_this_and_of_other_images(
    image: ferrofs.Image, image_file: Path, files: dict[str, bytes], tmp_path: Path
) -> None:
    infos = {info.filename: info for info in image.infolist()}
    for name, content in files.items():
        assert image.read(infos[name]) == image.read(image.getinfo(name)) == content, name
    assert image.read(infos["link"]) == files["hello.txt"]
    with pytest.raises(IsADirectoryError):
        image.read(infos["docs/"])
    with pytest.raises(ferrofs.ErofsError, match="not a regular file"):
        image.read(infos["fifo"])
    # In an image where the numbers of inodes mean other files, the name counts; and so it does
    # after pickling.
    ferrofs.build([(f"x{n}", b"x" * n) for n in range(40)] + [("large", b"other")], tmp_path / "o")
    with ferrofs.Image(tmp_path / "o") as other:
        assert other.read(infos["large"]) == b"other"
        with pytest.raises(FileNotFoundError):
            other.read(infos["noise"])
    for info in infos.values():
        assert pickle.loads(pickle.dumps(info)) == info
    assert image.read(pickle.loads(pickle.dumps(infos["large"]))) == files["large"]
    # An image of its own: other threads may run this test on the shared one.
    with ferrofs.Image(image_file) as own:
        info = own.getinfo("large")
        assert own.read(info) == files["large"]
    with pytest.raises(ValueError, match="closed"):
        own.read(info)
