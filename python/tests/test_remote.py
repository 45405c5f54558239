"""Images at URLs."""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import ferrofs
import pytest

pytestmark = pytest.mark.thread_unsafe(reason="changes the environment")


def fetcher() -> str | None:
    """The program that fetches: beside the command, or in `PATH`."""
    beside = Path(os.environ.get("FERROFS", "ferrofs")).with_name("ferrofs-fetch")
    return str(beside) if beside.is_file() else shutil.which("ferrofs-fetch")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    data = b""
    is_gone = False

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer(b"")

    def do_GET(self) -> None:
        part = re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if part is None:
            self.answer(self.data)
            return
        first, last = int(part[1]), min(int(part[2] or len(self.data)), len(self.data) - 1)
        self.answer(self.data[first : last + 1], f"bytes {first}-{last}/{len(self.data)}")

    def answer(self, body: bytes, part: str | None = None) -> None:
        if self.is_gone:
            self.send_error(404)
            return
        self.send_response(206 if part else 200)
        self.send_header("ETag", '"x"')
        self.send_header("Content-Length", str(len(body if part else self.data)))
        if part:
            self.send_header("Content-Range", part)
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture(autouse=True)
def _fetcher_and_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = fetcher()
    if program is None:
        pytest.skip("ferrofs-fetch is not there")
    monkeypatch.setenv("FERROFS_FETCH", program)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@contextmanager
def serving(handler: type[Handler]) -> Iterator[int]:
    """A server, while the block runs; its port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://user:s3cret@host/a.erofs", "https://…@host/a.erofs"),
        ("https:///a.erofs?signature=s3cret", "https:///a.erofs"),
        ("http://127.0.0.1:{port}/a.erofs?signature=s3cret", "http://127.0.0.1:{port}/a.erofs?…"),
    ],
)
def test_an_error_repeats_no_password_and_no_signature(url: str, shown: str) -> None:
    handler = type("TheHandler", (Handler,), {"data": b"no image" * 1000})
    with serving(handler) as port:
        with pytest.raises(ferrofs.ErofsError) as raised:
            ferrofs.Image(url.format(port=port))
        assert raised.value.filename == shown.format(port=port)
        assert "s3cret" not in "".join(traceback.format_exception(raised.value))


class Interrupted(BaseException):
    """What the handler of a signal raises in the test below."""


def test_a_signal_ends_a_wait_for_a_server(tmp_path: Path) -> None:
    ferrofs.build([("big", os.urandom(4 << 20))], tmp_path / "a.erofs", None)
    answers = threading.Event()
    answers.set()

    class Slow(Handler):
        data = (tmp_path / "a.erofs").read_bytes()

        def answer(self, body: bytes, part: str | None = None) -> None:
            if answers.wait(30):
                super().answer(body, part)

    def raises(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, raises)
    with serving(Slow) as port:
        try:
            url = f"http://127.0.0.1:{port}/a.erofs"
            image = ferrofs.Image(url)
            answers.clear()
            calls: list[Callable[[], object]] = [
                lambda: image.read_range("big", 3 << 20, 10),
                lambda: image.read("big"),
                lambda: ferrofs.Image(f"{url}?other"),
            ]
            for call in calls:
                started = time.monotonic()
                signal.setitimer(signal.ITIMER_REAL, 0.3)
                with pytest.raises(Interrupted):
                    call()
                assert time.monotonic() - started < 20
            answers.set()
            assert len(image.read("big")) == 4 << 20
            image.close()
        finally:
            signal.signal(signal.SIGALRM, before)
            answers.set()


def test_an_image_that_the_server_lost_has_no_missing_names(tmp_path: Path) -> None:
    # So much that opening it does not fetch all of it.
    ferrofs.build(
        ((f"d{one:02}/{'x' * 200}{two}", os.urandom(9000)) for one in range(40) for two in range(25)),
        tmp_path / "a.erofs",
        None,
    )
    handler = type("TheHandler", (Handler,), {"data": (tmp_path / "a.erofs").read_bytes()})
    with serving(handler) as port:
        image = ferrofs.Image(f"http://127.0.0.1:{port}/a.erofs")
        handler.is_gone = True
        name = f"d20/{'x' * 200}7"
        calls: list[Callable[[], object]] = [
            lambda: image.exists(name),
            lambda: image.isdir(name),
            lambda: image.isfile(name),
            lambda: image.stat(name),
            lambda: image.read(name),
        ]
        for call in calls:
            with pytest.raises(ferrofs.RemoteError, match="404") as raised:
                call()
            assert raised.value.errno == errno.EIO
            assert not isinstance(raised.value, FileNotFoundError)
        problems = image.check(name).problems
        assert problems and all(type(one) is ferrofs.RemoteError for one in problems)
        with pytest.raises(ferrofs.ExtractError) as failed:
            image.extractall(tmp_path / "out")
        assert all(type(one) is ferrofs.RemoteError for one in failed.value.failures)
        image.close()
