"""A back end of ratarmount for EROFS images, such as ratarmountcore has for SquashFS and ext4.

`register()` inserts it, after which `ratarmountcore` opens EROFS images as it opens archives:

    import ratarmount_erofs
    from ratarmountcore.mountsource.factory import open_mount_source

    ratarmount_erofs.register()
    source = open_mount_source("app.erofs")
"""

from __future__ import annotations

import io
import stat
from collections.abc import Iterable
from typing import IO, Any

import ferrofs
from ratarmountcore.mountsource import FileInfo, MountSource

MAGIC = b"\xe2\xe1\xf5\xe0"
MAGIC_OFFSET = 1024


class ErofsMountSource(MountSource):
    """An EROFS image as ratarmount sees an archive. The user data of an entry is its path."""

    def __init__(self, file_or_path: str | IO[bytes], **options: Any) -> None:
        self.image = ferrofs.Image(file_or_path)
        self.options = options

    def _info(self, path: str) -> FileInfo:
        status = self.image.lstat(path)
        is_link = stat.S_ISLNK(status.st_mode)
        return FileInfo(
            size=status.st_size,
            mtime=status.st_mtime,
            mode=status.st_mode,
            linkname=self.image.readlink(path) if is_link else "",
            uid=status.st_uid,
            gid=status.st_gid,
            userdata=[path],
        )

    def is_immutable(self) -> bool:
        return True

    def lookup(self, path: str, fileVersion: int = 0) -> FileInfo | None:
        try:
            return self._info(path)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def list(self, path: str) -> Iterable[str] | dict[str, FileInfo] | None:
        modes = self.list_mode(path)
        if modes is None:
            return None
        return {name: self._info(f"{path.rstrip('/')}/{name}") for name in modes}

    def list_mode(self, path: str) -> dict[str, int] | None:
        try:
            with self.image.scandir(path) as entries:
                return {entry.name: entry._type_bits for entry in entries}
        except (FileNotFoundError, NotADirectoryError):
            return None

    def open(self, fileInfo: FileInfo, buffering: int = -1) -> IO[bytes]:
        file = self.image.open(fileInfo.userdata[-1], buffering=buffering)
        return file  # type: ignore[return-value]

    def read(self, fileInfo: FileInfo, size: int, offset: int) -> bytes:
        return self.image.read_range(fileInfo.userdata[-1], offset, size)

    def statfs(self) -> dict[str, Any]:
        sb = self.image.superblock
        return {"f_bsize": sb.block_size, "f_namemax": 255, "f_blocks": sb.blocks}

    def list_xattr(self, fileInfo: FileInfo) -> list[str]:
        return self.image.listxattr(fileInfo.userdata[-1], follow_symlinks=False)

    def get_xattr(self, fileInfo: FileInfo, key: str) -> bytes | None:
        try:
            return self.image.getxattr(fileInfo.userdata[-1], key, follow_symlinks=False)
        except OSError:
            return None

    def __exit__(self, *_: object) -> None:
        self.image.close()


def is_erofs_image(file: IO[bytes]) -> bool:
    """Whether a file begins with the superblock of EROFS; its position stays."""
    position = file.tell()
    try:
        file.seek(position + MAGIC_OFFSET)
        return file.read(len(MAGIC)) == MAGIC
    except (OSError, io.UnsupportedOperation):
        return False
    finally:
        file.seek(position)


def register() -> None:
    """Makes ratarmountcore open EROFS images."""
    from ratarmountcore.mountsource import archives

    def open_erofs(file_or_path: str | IO[bytes], **options: Any) -> MountSource | None:
        return ErofsMountSource(file_or_path, **options)

    backend = type(next(iter(archives.ARCHIVE_BACKENDS.values())))
    archives.ARCHIVE_BACKENDS["erofs"] = backend(open_erofs, set(), [])
