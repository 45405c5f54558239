"""fsspec's `test_archive.py`, which is part of its source only: FSSPEC_TEST_ARCHIVE names the file.

One deviation: an empty image has a root directory, so `info("")` does not fail.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import ferrofs
import pytest

pytest.importorskip("fsspec")
PATH = os.environ.get("FSSPEC_TEST_ARCHIVE")
if not PATH:
    reason = "FSSPEC_TEST_ARCHIVE does not name fsspec/implementations/tests/test_archive.py"
    pytest.skip(reason, allow_module_level=True)


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fsspec_test_archive", PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


theirs = load()
pytest_generate_tests = theirs.pytest_generate_tests


@contextmanager
def temperofs(data: dict[str, bytes] | None = None) -> Iterator[str]:
    """An image in a temporary file, as their providers make archives."""
    with tempfile.TemporaryDirectory() as directory:
        output = os.path.join(directory, "a.erofs")
        ferrofs.build((data or {}).items(), output)
        yield output


class TestErofsArchive(theirs.TestAnyArchive):  # type: ignore[name-defined, misc]
    scenarios = [theirs.ArchiveTestScenario(protocol="erofs", provider=temperofs)]

    def test_empty(self, scenario: Any) -> None:
        import fsspec

        with scenario.provider() as archive:
            fs = fsspec.filesystem(scenario.protocol, fo=archive)
            assert fs.find("") == [] == fs.find("", withdirs=True) == fs.ls("")
            assert fs.info("")["type"] == "directory"
