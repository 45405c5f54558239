"""A file system of dissect.target for EROFS images, such as it has for SquashFS.

    from dissect.target import filesystem
    import dissect_erofs

    filesystem.FILESYSTEMS.append(dissect_erofs.ErofsFilesystem)
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, BinaryIO

import ferrofs
from dissect.target.exceptions import (
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    NotASymlinkError,
)
from dissect.target.filesystem import DirEntry, Filesystem, FilesystemEntry
from dissect.target.helpers import fsutil

MAGIC = b"\xe2\xe1\xf5\xe0"
MAGIC_OFFSET = 1024


class ErofsFilesystem(Filesystem):
    """An EROFS image."""

    __type__ = "erofs"

    def __init__(self, fh: BinaryIO, *args: Any, **kwargs: Any) -> None:
        super().__init__(fh, *args, **kwargs)
        self.image = ferrofs.Image(fh)

    @staticmethod
    def _detect(fh: BinaryIO) -> bool:
        fh.seek(MAGIC_OFFSET)
        return fh.read(len(MAGIC)) == MAGIC

    def get(self, path: str) -> ErofsFilesystemEntry:
        return ErofsFilesystemEntry(self, path, self._lstat(path))

    def _lstat(self, path: str) -> os.stat_result:
        try:
            return self.image.lstat(path)
        except ferrofs.NotADirectoryInImageError as error:
            raise NotADirectoryError(path) from error
        except ferrofs.NotFoundError as error:
            raise FileNotFoundError(path) from error


class ErofsDirEntry(DirEntry):
    """An entry of a directory."""

    fs: ErofsFilesystem
    entry: ferrofs.ErofsDirEntry

    def get(self) -> ErofsFilesystemEntry:
        return ErofsFilesystemEntry(
            self.fs, self.entry.path, self.entry.stat(follow_symlinks=False)
        )

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return self.entry.is_dir(follow_symlinks=follow_symlinks)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return self.entry.is_file(follow_symlinks=follow_symlinks)

    def is_symlink(self) -> bool:
        return self.entry.is_symlink()

    def stat(self, *, follow_symlinks: bool = True) -> fsutil.stat_result:
        return self.get().stat(follow_symlinks=follow_symlinks)


class ErofsFilesystemEntry(FilesystemEntry):
    """An inode under one of its paths."""

    fs: ErofsFilesystem
    entry: os.stat_result

    def get(self, path: str) -> ErofsFilesystemEntry:
        return self.fs.get(fsutil.join(self.path, path, alt_separator=self.fs.alt_separator))

    def open(self) -> BinaryIO:
        if self.is_dir():
            raise IsADirectoryError(self.path)
        return self.fs.image.open(self.path, buffering=-1)  # type: ignore[return-value]

    def scandir(self) -> Iterator[ErofsDirEntry]:
        if not self.is_dir():
            raise NotADirectoryError(self.path)
        for entry in self.fs.image.scandir(self.path):
            yield ErofsDirEntry(self.fs, self.path, entry.name, entry)

    def is_dir(self, follow_symlinks: bool = True) -> bool:
        path = self._resolve(follow_symlinks=follow_symlinks).path
        return self.fs.image.isdir(path) and (follow_symlinks or not self.is_symlink())

    def is_file(self, follow_symlinks: bool = True) -> bool:
        path = self._resolve(follow_symlinks=follow_symlinks).path
        return self.fs.image.isfile(path) and (follow_symlinks or not self.is_symlink())

    def is_symlink(self) -> bool:
        return (self.entry.st_mode & 0o170000) == 0o120000

    def readlink(self) -> str:
        if not self.is_symlink():
            raise NotASymlinkError(self.path)
        return self.fs.image.readlink(self.path)

    def stat(self, follow_symlinks: bool = True) -> fsutil.stat_result:
        return self._resolve(follow_symlinks=follow_symlinks).lstat()

    def lstat(self) -> fsutil.stat_result:
        status = self.entry
        fields = [
            status.st_mode,
            status.st_ino,
            id(self.fs),
            status.st_nlink,
            status.st_uid,
            status.st_gid,
            status.st_size,
            0,
            status.st_mtime,
            0,
        ]
        return fsutil.stat_result(fields)

    def attr(self) -> list[tuple[str, bytes]]:
        """The extended attributes."""
        image = self.fs.image
        names = image.listxattr(self.path, follow_symlinks=False)
        return [(name, image.getxattr(self.path, name, follow_symlinks=False)) for name in names]
