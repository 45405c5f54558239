"""The back ends for ratarmount and dissect in `examples`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))


def test_ratarmount_lists_and_reads(image_file: Path, files: dict[str, bytes]) -> None:
    pytest.importorskip("ratarmountcore")
    import ratarmount_erofs
    from ratarmountcore.mountsource.factory import open_mount_source

    ratarmount_erofs.register()
    with open_mount_source(str(image_file), prioritizedBackends=["erofs"]) as source:
        assert isinstance(source, ratarmount_erofs.ErofsMountSource)
        assert source.is_immutable() and source.is_dir("/docs")
        assert set(source.list("/docs")) == {"a.md", "deep", "schön.txt"}
        assert source.list("/nowhere") is None and source.lookup("/nowhere") is None
        assert source.list_mode("/docs")["deep"] == 0o040000
        for name, data in files.items():
            info = source.lookup("/" + name)
            assert info.size == len(data) and source.read(info, 100, 10) == data[10:110]
            with source.open(info) as file:
                assert file.read() == data
        assert source.lookup("/link").linkname == "hello.txt"
        tagged = source.lookup("/tagged")
        assert source.list_xattr(tagged) == ["user.colour", "user.n"]
        assert source.get_xattr(tagged, "user.colour") == b"red"
        assert source.get_xattr(tagged, "user.none") is None
    with open(image_file, "rb") as file:
        assert ratarmount_erofs.is_erofs_image(file) and file.tell() == 0


def test_dissect_lists_and_reads(image_file: Path, files: dict[str, bytes]) -> None:
    pytest.importorskip("dissect.target")
    import dissect_erofs
    from dissect.target import exceptions, filesystem

    with open(image_file, "rb") as fh:
        assert dissect_erofs.ErofsFilesystem.detect(fh)
        fs = dissect_erofs.ErofsFilesystem(fh)
        assert sorted(fs.listdir("/docs")) == ["a.md", "deep", "schön.txt"]
        for name, data in files.items():
            assert fs.path("/" + name).read_bytes() == data
        assert fs.path("/link").read_text() == "hello, world\n"
        assert fs.get("/link").readlink() == "hello.txt"
        assert fs.get("/link").stat().st_size == 13
        assert fs.path("/dirlink").is_dir() and not fs.get("/dirlink").is_dir(False)
        names = {entry.name for entry in fs.scandir("/") if entry.is_symlink()}
        assert names == {"link", "dirlink", "absolute", "up", "broken", "loop"}
        walked = {str(path) for path in fs.path("/").rglob("*.md")}
        assert {"/docs/a.md", "/docs/deep/er/b.md"} <= walked
        assert dict(fs.get("/tagged").attr()) == {"user.colour": b"red", "user.n": b"\0\1"}
        with pytest.raises(exceptions.FileNotFoundError):
            fs.get("/nowhere")
        with pytest.raises(exceptions.IsADirectoryError):
            fs.open("/docs")
        vfs = filesystem.VirtualFilesystem()
        vfs.mount("/image", fs)
        assert vfs.path("/image/docs/a.md").read_bytes() == b"# A\n"
