"""Files of an image."""

from __future__ import annotations

import io
import operator
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ferrofs import _native
    from ferrofs.image import Image

__all__ = ["ErofsFile"]

_PIECE_BYTES = 4 << 20
"""What is decoded at a time before it is copied into a caller's buffer."""


class ErofsFile(io.RawIOBase):
    """A regular file of an image, open for reading (:meth:`ferrofs.Image.open`).

    ``read`` decodes into the ``bytes`` that it returns; ``readinto`` and ``pread_into`` copy once.
    Any number of threads may call ``pread`` and ``pread_into``, which do not use the position of
    the file; ``read``, ``readinto`` and ``seek`` do.
    """

    def __init__(self, image: Image, path: bytes, opened: _native.NativeFile) -> None:
        super().__init__()
        self._image = image
        self._path = path
        self._opened = opened
        self._position = 0

    @property
    def name(self) -> str:
        """The path of the file in its image."""
        return os.fsdecode(self._path)

    @property
    def mode(self) -> str:
        """Always ``"rb"``."""
        return "rb"

    @property
    def size(self) -> int:
        """The size of the file in bytes."""
        return self._opened.size

    def close(self) -> None:
        """Closes the file, and releases what it holds of the image."""
        if not self.closed:
            self._opened.close()
        super().close()

    def readable(self) -> bool:
        """Whether the file can be read: it can."""
        return True

    def seekable(self) -> bool:
        """Whether the file can be read at any position: it can."""
        return True

    def tell(self) -> int:
        """The position of the next read."""
        self._check_open()
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Sets the position of the next read."""
        self._check_open()
        bases = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._opened.size}
        if whence not in bases:
            raise ValueError(f"whence is 0, 1 or 2, not {whence}")
        # A fraction is refused, and a number of another library has no arithmetic of its own here.
        position = bases[whence] + operator.index(offset)
        if position < 0:
            raise ValueError(f"a position before the start of the file: {position}")
        self._position = position
        return position

    def read(self, size: int | None = -1, /) -> bytes:
        """Reads at most ``size`` bytes; without ``size``, or if it is negative, all bytes that are
        left."""
        self._check_open()
        if size is None or size < 0:
            size = max(self._opened.size - self._position, 0)
        data = self._opened.pread(size, self._position)
        self._position += len(data)
        return data

    def readall(self) -> bytes:
        """Reads all bytes that are left."""
        return self.read()

    def readinto(self, buffer: Any, /) -> int:
        """Reads into a writable buffer; returns the number of bytes."""
        count = self.pread_into(buffer, self._position)
        self._position += count
        return count

    def pread(self, size: int, offset: int) -> bytes:
        """Reads at most ``size`` bytes from byte ``offset`` on. The position does not change."""
        self._check_open()
        return self._opened.pread(size, offset)

    def pread_into(self, buffer: Any, offset: int) -> int:
        """Reads into a writable buffer from byte ``offset`` on; returns the number of bytes. The
        position does not change."""
        self._check_open()
        filled = 0
        with memoryview(buffer) as view, view.cast("B") as target:
            while filled < len(target):
                wanted = min(len(target) - filled, _PIECE_BYTES)
                data = self._opened.pread(wanted, offset + filled)
                if not data:
                    break
                target[filled : filled + len(data)] = data
                filled += len(data)
        return filled

    def write(self, data: Any, /) -> int:
        """Refused: an image is read-only."""
        raise io.UnsupportedOperation("write")

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")

    def __reduce__(self) -> tuple[Any, ...]:
        return (_reopen, (self._image, self._path, self._position))

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{self._opened.size} bytes"
        return f"<ferrofs.ErofsFile {self.name!r}, {state}>"


def _reopen(image: Image, path: bytes, position: int) -> ErofsFile:
    file = image.open(path)
    assert isinstance(file, ErofsFile)
    file.seek(position)
    return file
