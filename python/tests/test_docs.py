"""The examples of the documentation, each in an empty directory."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
from pathlib import Path

import ferrofs
import pytest

PACKAGE = Path(__file__).resolve().parent.parent
MODULES = ["ferrofs", *(f"ferrofs.{module.name}" for module in pkgutil.iter_modules(ferrofs.__path__))]
PAGES = ["README.md", "../docs/python.md"]
pytestmark = pytest.mark.thread_unsafe(reason="changes the directory")


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_a_module(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "ferrofs.fsspec":
        pytest.importorskip("fsspec")
    monkeypatch.chdir(tmp_path)
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize("page", PAGES)
def test_examples_of_a_page(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fsspec")
    path = PACKAGE / page
    if not path.exists():
        pytest.skip(f"{page} is not here")
    monkeypatch.chdir(tmp_path)
    results = doctest.testfile(str(path), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert results.failed == 0 and results.attempted > 5


def test_every_public_name_is_documented() -> None:
    missing = []
    for name in ferrofs.__all__:
        item = getattr(ferrofs, name)
        if not inspect.getdoc(item):
            missing.append(name)
        if not inspect.isclass(item):
            continue
        for member, value in vars(item).items():
            is_code = inspect.isfunction(value) or isinstance(value, property)
            if not member.startswith("_") and is_code and not value.__doc__:
                missing.append(f"{name}.{member}")
    assert missing == []
