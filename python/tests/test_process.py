"""Forks, other processes, and the end of the interpreter."""

from __future__ import annotations

import copy as copying
import hashlib
import io
import multiprocessing
import os
import pickle
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import ferrofs
import pytest

pytestmark = pytest.mark.thread_unsafe(reason="forks")

FORKS = 200
CHILD_SECONDS = 10


def run_child(work: Callable[[], bool]) -> int:
    """Forks; returns the status of the child, -1 if it did not end in time."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if work() else 1)
        except BaseException:
            os._exit(2)
    deadline = time.monotonic() + CHILD_SECONDS
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return -1


class BusyReaders:
    """Threads that read until the end of a `with` block."""

    def __init__(self, image: ferrofs.Image, names: list[str]) -> None:
        self.image, self.names = image, names
        self.stop = threading.Event()
        self.threads = [threading.Thread(target=self.read) for _ in range(3)]

    def read(self) -> None:
        file = self.image.open("large")
        while not self.stop.is_set():
            for name in self.names:
                self.image.read(name)
            file.seek(0)
            while file.read(100_000):
                pass

    def __enter__(self) -> None:
        for thread in self.threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_forked_children_read_while_threads_of_the_parent_read(
    image_file: Path, files: dict[str, bytes]
) -> None:
    image = ferrofs.Image(image_file, memory=24 << 20)
    file = image.open("large")

    def work() -> bool:
        same = image.read("docs/deep/er/b.md") == files["docs/deep/er/b.md"]
        same &= file.pread(70_000, 1_000_000) == files["large"][1_000_000:1_070_000]
        return same and image.read("large") == files["large"]

    statuses, seconds = [], []
    with BusyReaders(image, list(files)):
        for _ in range(FORKS):
            started = time.monotonic()
            statuses.append(run_child(work))
            seconds.append(time.monotonic() - started)
    median, slowest = statistics.median(seconds), max(seconds)
    # Shown by `pytest -rP`.
    print(f"{FORKS} children: median {median:.3f} s, slowest {slowest:.3f} s")
    assert statuses == [0] * FORKS


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_reads_an_image_in_memory(image_file: Path, files: dict[str, bytes]) -> None:
    data = image_file.read_bytes()
    for source in (data, io.BytesIO(data)):
        image = ferrofs.Image(source)
        assert image.read("large") == files["large"]
        assert run_child(lambda: image.read("large") == files["large"]) == 0
        assert run_child(lambda: bool(image.check())) == 0
        assert image.read("noise") == files["noise"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_may_drop_and_close_what_its_parent_opened(image_file: Path) -> None:
    image = ferrofs.Image(image_file)
    file = image.open("large")
    file.read(1_000_000)
    box = [image, file]

    def work() -> bool:
        box.clear()
        image.close()
        return image.closed

    assert run_child(work) == 0
    assert file.read(10) and not image.closed


def digest(image: ferrofs.Image, name: str) -> str:
    """Runs in another process."""
    return hashlib.sha256(image.read(name)).hexdigest()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_processes_of_every_start_method_read(
    method: str, image_file: Path, files: dict[str, bytes]
) -> None:
    image = ferrofs.Image(image_file)
    image.read("large")
    names = list(files)
    with multiprocessing.get_context(method).Pool(2) as pool:
        found = pool.starmap_async(digest, [(image, name) for name in names]).get(60)
    assert found == [hashlib.sha256(files[name]).hexdigest() for name in names]


def test_an_image_is_pickled_by_its_arguments(image_file: Path, tmp_path: Path) -> None:
    image = ferrofs.Image(image_file, memory=32 << 20)
    text = pickle.dumps(image)
    assert len(text) < 500 and os.fsencode(image_file) in text
    old = os.getcwd()
    os.chdir(image_file.parent)
    try:
        text = pickle.dumps(ferrofs.Image(image_file.name))
    finally:
        os.chdir(old)
    assert pickle.loads(text).namelist() == image.namelist()


class NamedImage(ferrofs.Image):
    """An image with an attribute, and arguments of its own."""

    def __init__(self, directory: Path, name: str) -> None:
        super().__init__(directory / name)
        self.name = name


def test_a_subclass_is_pickled_as_it_is(image_file: Path, files: dict[str, bytes]) -> None:
    image = NamedImage(image_file.parent, image_file.name)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        for copy in (pickle.loads(pickle.dumps(image, protocol)), copying.copy(image)):
            assert type(copy) is NamedImage and copy.name == image_file.name
            assert copy.read("large") == files["large"]
            copy.close()
    assert not image.closed


@pytest.mark.parametrize("source", ["sys.argv[1]", "open(sys.argv[1], 'rb', buffering=0).read()"])
def test_the_interpreter_ends_while_threads_read(source: str, image_file: Path) -> None:
    program = f"""
import io, sys, threading, time
import ferrofs
image = ferrofs.Image({source})
objects = ferrofs.Image(io.BytesIO(open(sys.argv[1], 'rb').read()), memory=24 << 20)
def read(image):
    while True:
        image.read("large")
for one in (image, objects):
    threading.Thread(target=read, args=(one,), daemon=True).start()
time.sleep(0.2)
"""
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", program, str(image_file)],
            capture_output=True,
            timeout=30,
        )
        assert (done.returncode, done.stderr) == (0, b"")


def test_the_interpreter_runs_while_a_thread_reads(image_file: Path) -> None:
    """A source that waits does not stop other threads."""
    released = threading.Event()

    class Waiting(io.BytesIO):
        waits = False

        def read(self, size: int | None = -1, /) -> bytes:
            if self.waits:
                assert released.wait(20)
            return super().read(size)

    source = Waiting(image_file.read_bytes())
    image = ferrofs.Image(source)
    source.waits = True
    thread = threading.Thread(target=image.read, args=("noise",))
    thread.start()
    time.sleep(0.05)
    released.set()
    thread.join(20)
    assert not thread.is_alive()


NO_THREAD = """
import errno, resource, sys
import ferrofs

image = ferrofs.Image(sys.argv[1])
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
# Too little for the stack of a thread.
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 20),) * 2)
for call in (
    image.check,
    lambda: image.extractall(sys.argv[2] + "/out"),
    lambda: ferrofs.build([("a", b"x")], sys.argv[2] + "/a.erofs"),
):
    try:
        call()
    except ferrofs.ErofsError as error:
        print(type(error).__name__, error.errno in (errno.EAGAIN, errno.ENOMEM), error.strerror[:21])
"""


def test_a_thread_that_cannot_start_is_an_error(image_file: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", NO_THREAD, str(image_file), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.stderr == "" and done.stdout == "ErofsError True cannot start a thread\n" * 3
    assert os.listdir(tmp_path) == []
