"""Mounts, with the program `ferrofs` where it is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import ferrofs
import pytest

pytestmark = pytest.mark.thread_unsafe(reason="changes the environment")


@pytest.fixture
def program() -> str:
    found = shutil.which(os.environ.get("FERROFS") or "ferrofs")
    if found is None:
        pytest.skip("the program ferrofs is neither in PATH nor in FERROFS")
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("/dev/fuse cannot be opened")
    return found


def test_a_mount_lasts_for_its_block(
    program: str, image_file: Path, files: dict[str, bytes], tmp_path: Path
) -> None:
    with ferrofs.mount(image_file) as path:
        assert (Path(path) / "large").read_bytes() == files["large"]
    assert not os.path.exists(path)
    (tmp_path / "here").mkdir()
    with pytest.raises(ZeroDivisionError):
        with ferrofs.mount(image_file, tmp_path / "here", memory=64 << 20) as path:
            assert os.listdir(path)
            raise ZeroDivisionError
    assert os.listdir(tmp_path / "here") == []


def test_a_mount_that_is_in_use_is_reported_and_its_directory_stays(
    program: str, image_file: Path, files: dict[str, bytes]
) -> None:
    with pytest.raises(ferrofs.MountError):
        with ferrofs.mount(image_file) as path:
            opened = open(Path(path) / "large", "rb")
    try:
        assert os.path.ismount(path) and opened.read() == files["large"]
    finally:
        opened.close()
        helper = shutil.which("fusermount3") or shutil.which("fusermount")
        subprocess.run([helper, "-u", "--", path] if helper else ["umount", path], check=True)
        os.rmdir(path)


def test_what_cannot_be_mounted_is_refused(program: str, tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"text" * 1000)
    with pytest.raises(ferrofs.MountError, match="EROFS"):
        with ferrofs.mount(tmp_path / "text"):
            pass


def test_without_the_program_the_message_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, image_file: Path
) -> None:
    monkeypatch.setenv("FERROFS", "/nowhere/ferrofs")
    with pytest.raises(ferrofs.MountError, match="install it"):
        with ferrofs.mount(image_file):
            pass
