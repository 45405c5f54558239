"""fsspec's own tests of reading: AbstractGetTests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ferrofs
import pytest

pytest.importorskip("fsspec.tests.abstract")
from fsspec.implementations.local import LocalFileSystem  # noqa: E402
from fsspec.tests import abstract  # noqa: E402

from ferrofs.fsspec import ErofsFileSystem  # noqa: E402

pytestmark = pytest.mark.thread_unsafe(reason="fixtures of the class")


class StagedFileSystem(ErofsFileSystem):  # type: ignore[misc]
    """An image of a directory: the tests write there, and the next read builds the image."""

    protocol = "erofs-staged"

    def __init__(self, staging: str, output: str, **kwargs: Any) -> None:
        self.staging = Path(staging)
        self.local = LocalFileSystem(auto_mkdir=True)
        ferrofs.build(staging, output, overwrite=True)
        super().__init__(fo=output, **kwargs)

    def _staged(self, path: str) -> str:
        self._close_image()
        return str(self.staging / self._strip_protocol(path))

    def _open_image(self) -> ferrofs.Image:
        ferrofs.build(self.staging, self.fo, overwrite=True)
        return super()._open_image()

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        self.local.mkdir(self._staged(path), create_parents)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        self.local.makedirs(self._staged(path), exist_ok)

    def touch(self, path: str, truncate: bool = True, **kwargs: Any) -> None:
        self.local.touch(self._staged(path), truncate)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        self.local.pipe_file(self._staged(path), value)

    def rm(self, path: str, recursive: bool = False, maxdepth: int | None = None) -> None:
        self.local.rm(self._staged(path), recursive)


class ErofsFixtures(abstract.AbstractFixtures):  # type: ignore[misc]
    @pytest.fixture
    def fs(self, tmp_path: Path) -> StagedFileSystem:
        (tmp_path / "staging/base").mkdir(parents=True)
        return StagedFileSystem(str(tmp_path / "staging"), str(tmp_path / "staged.erofs"))

    @pytest.fixture
    def fs_path(self) -> str:
        # Not the root: fsspec does not find the parent of a source at the top.
        return "base"


class TestGet(abstract.AbstractGetTests, ErofsFixtures):  # type: ignore[misc]
    """All tests of the suite, with none changed."""


def test_the_suite_has_the_tests_that_it_had() -> None:
    names = [name for name in dir(TestGet) if name.startswith("test_")]
    assert len(names) >= 14
