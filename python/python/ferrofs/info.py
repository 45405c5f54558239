"""The metadata of the entries of an image."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ferrofs.errors import time_error

if TYPE_CHECKING:
    from ferrofs.image import Image

__all__ = ["ErofsDirEntry", "ErofsInfo", "stat_result"]

NativeInode = tuple[int, int, int, int, int, int, int, int, int, int, int]


def stat_result(inode: NativeInode) -> os.stat_result:
    """An inode as :func:`os.stat` returns it. An inode of EROFS has only one time, so all three
    times are the same."""
    nid, mode, nlink, uid, gid, size, seconds, nanoseconds, major, minor, stored = inode
    whole = seconds * 1_000_000_000 + nanoseconds
    exact = seconds + nanoseconds / 1e9
    device = os.makedev(major, minor)
    blocks = -(-stored // 512)
    fields = (mode, nid, 0, nlink, uid, gid, size, seconds, seconds, seconds)
    return os.stat_result(fields + (exact,) * 3 + (whole,) * 3 + (4096, blocks, device))


@dataclass(frozen=True)
class ErofsInfo:
    """An entry of an image. Attributes that ``zipfile.ZipInfo`` has, too, have the same names."""

    filename: str
    """The path without a leading slash; that of a directory ends with a slash, as in zipfile."""

    file_size: int
    """Bytes of the content; for a symlink, of its target."""

    compress_size: int
    """Bytes that the content takes in the image, as far as its inode says."""

    mode: int
    """Type and permissions, as in ``st_mode``."""

    uid: int
    """Owner."""

    gid: int
    """Group."""

    mtime_ns: int
    """Modification time: nanoseconds since 1970."""

    nid: int
    """The number of the inode. Hard links have the same."""

    nlink: int
    """How many names the inode has."""

    rdev: int
    """The device number of a device node."""

    # What the image has that this is from: its nid means nothing to another one.
    _image: object = field(default=None, init=False, repr=False, compare=False)

    @property
    def date_time(self) -> tuple[int, int, int, int, int, int]:
        """Modification time in UTC: year, month, day, hour, minute and second."""
        seconds = self.mtime_ns // 1_000_000_000
        try:
            moment = time.gmtime(seconds)
        except (OSError, OverflowError, ValueError):
            raise time_error(self.filename, seconds) from None
        return (
            moment.tm_year,
            moment.tm_mon,
            moment.tm_mday,
            moment.tm_hour,
            moment.tm_min,
            moment.tm_sec,
        )

    def is_dir(self) -> bool:
        """Whether it is a directory."""
        return stat.S_ISDIR(self.mode)

    def is_file(self) -> bool:
        """Whether it is a regular file."""
        return stat.S_ISREG(self.mode)

    def is_symlink(self) -> bool:
        """Whether it is a symlink."""
        return stat.S_ISLNK(self.mode)

    @classmethod
    def _of(cls, path: str, inode: NativeInode, image: object) -> ErofsInfo:
        nid, mode, nlink, uid, gid, size, seconds, nanoseconds, major, minor, stored = inode
        is_directory = stat.S_ISDIR(mode)
        info = object.__new__(cls)
        # Not by `__init__`: that of a frozen class takes as long as reading a small file.
        info.__dict__.update(
            filename=path + "/" if is_directory and path else path,
            file_size=0 if is_directory else size,
            compress_size=0 if is_directory else stored,
            mode=mode,
            uid=uid,
            gid=gid,
            mtime_ns=seconds * 1_000_000_000 + nanoseconds,
            nid=nid,
            nlink=nlink,
            rdev=os.makedev(major, minor) if major or minor else 0,
            _image=image,
        )
        return info


class ErofsDirEntry:
    """An entry of a directory, as :class:`os.DirEntry` (:meth:`ferrofs.Image.scandir`)."""

    __slots__ = ("_image", "_type_bits", "_nid", "_status", "name", "path")

    name: str
    """The name in its directory."""

    path: str
    """The path in the image: the path of the directory, followed by the name."""

    def __init__(self, image: Image, folder: str, entry: tuple[str, int, int]) -> None:
        self._image = image
        self.name, self._type_bits, self._nid = entry
        self.path = os.path.join(folder, self.name)
        self._status: os.stat_result | None = None

    def inode(self) -> int:
        """The number of the inode; symlinks are not followed."""
        return self._nid

    def is_symlink(self) -> bool:
        """Whether it is a symlink."""
        return self._type_bits == stat.S_IFLNK

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Whether it is a directory, or a symlink to one."""
        return self._is(stat.S_ISDIR, follow_symlinks)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Whether it is a regular file, or a symlink to one."""
        return self._is(stat.S_ISREG, follow_symlinks)

    def is_junction(self) -> bool:
        """Whether it is a junction: never."""
        return False

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """The metadata of its inode. A symlink that leads nowhere raises ``FileNotFoundError``."""
        if follow_symlinks and self.is_symlink():
            return self._image.stat(self.path)
        if self._status is None:
            self._status = self._image._stat_nid(self._nid)
        return self._status

    def _is(self, test: Callable[[int], bool], follow_symlinks: bool) -> bool:
        if not (follow_symlinks and self.is_symlink()):
            return test(self._type_bits)
        return self._image._is(test, self.path)

    def __fspath__(self) -> str:
        return self.path

    def __repr__(self) -> str:
        return f"<ferrofs.ErofsDirEntry {self.name!r}>"


class ScandirIterator:
    """The iterator of :meth:`ferrofs.Image.scandir`; also a context manager, as that of ``os``."""

    def __init__(self, entries: list[ErofsDirEntry]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> ScandirIterator:
        return self

    def __next__(self) -> ErofsDirEntry:
        return next(self._entries)

    def close(self) -> None:
        """Ends the iteration."""
        self._entries = iter(())

    def __enter__(self) -> ScandirIterator:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
