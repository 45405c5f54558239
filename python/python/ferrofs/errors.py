"""The exceptions of this package.

Each of them is an :class:`OSError`: ``errno``, ``strerror`` and ``filename`` are set as for the
system's own errors, and ``path``, ``nid`` and ``byte`` say where in the image the error is.
"""

from __future__ import annotations

import errno
import os

__all__ = [
    "BuildError",
    "CancelledError",
    "CheckError",
    "CorruptImageError",
    "ErofsError",
    "ExistsError",
    "ExtractError",
    "IsADirectoryInImageError",
    "MountError",
    "NotADirectoryInImageError",
    "NotAnImageError",
    "NotFoundError",
    "RemoteError",
    "UnsupportedError",
]


# The number of "Structure needs cleaning", which only Python on Linux has in errno.
_EUCLEAN = 117


class ErofsError(OSError):
    """Something failed; the base class of all exceptions of this package.

    >>> error = ErofsError(5, "damaged", "a/b")
    >>> error.errno, error.path, error.nid
    (5, 'a/b', None)
    """

    nid: int | None = None
    """The number of the inode in question."""

    byte: int | None = None
    """The byte of the image (or of the device, or of an archive) in question."""

    @property
    def path(self) -> str | None:
        """The path in question: in the image, or of a file of the host."""
        name = self.filename
        return None if name is None else os.fsdecode(name)


class NotFoundError(ErofsError, FileNotFoundError, KeyError):
    """The image has no such name. It is also a ``KeyError``, which zipfile raises for this.

    >>> issubclass(NotFoundError, FileNotFoundError)
    True
    """

    __str__ = OSError.__str__


class IsADirectoryInImageError(ErofsError, IsADirectoryError):
    """A directory of the image was to be read as a file."""


class NotADirectoryInImageError(ErofsError, NotADirectoryError):
    """A name that is not a directory was to be listed, or is in the middle of a path."""


class CorruptImageError(ErofsError):
    """Bytes of the image break a rule of the format, or do not decode."""


def directory_loop(path: str) -> CorruptImageError:
    """The error for a directory that was entered before: in a damaged image it can be below itself."""
    return CorruptImageError(_EUCLEAN, "two paths lead to the same directory", path)


def time_error(path: str, seconds: int) -> ErofsError:
    """The error for a time of an inode that Python has no date for."""
    message = f"no date of Python is {seconds} seconds after 1970; getinfo(path).mtime_ns has the number"
    return ErofsError(errno.EOVERFLOW, message, path)


class NotAnImageError(CorruptImageError):
    """The source is not an EROFS image, or does not begin at this offset."""


class ExistsError(ErofsError, FileExistsError):
    """The output of a build or of an extraction exists, and must not be replaced."""


class RemoteError(ErofsError):
    """An image at a URL cannot be opened or read, or the program ``ferrofs-fetch`` is missing."""


class UnsupportedError(ErofsError):
    """The image uses a feature that this version does not know."""


class CancelledError(ErofsError):
    """A progress callback returned ``False``."""


class BuildError(ErofsError):
    """An image cannot be built from this source, or with these options."""


class MountError(ErofsError):
    """The ``ferrofs`` program could not mount the image."""


class ExtractError(ErofsError):
    """Some entries could not be extracted; all others were."""

    failures: list[ErofsError] = []
    """The first failures, 1,000 at most."""

    failed: int = 0
    """How many entries failed."""


class CheckError(CorruptImageError):
    """A check found problems (:meth:`ferrofs.CheckResult.raise_for_problems`)."""

    problems: list[ErofsError] = []
    """The first problems, 1,000 at most."""


_BY_ERRNO: dict[int, type[ErofsError]] = {
    errno.ENOENT: NotFoundError,
    errno.EEXIST: ExistsError,
    errno.EISDIR: IsADirectoryInImageError,
    errno.ENOTDIR: NotADirectoryInImageError,
}


def _make(
    class_name: str,
    code: str | int,
    message: str,
    path: bytes | None,
    place: tuple[int | None, int | None],
) -> ErofsError:
    """Makes the exception that the compiled half describes."""
    number = code if isinstance(code, int) else getattr(errno, code)
    kind: type[ErofsError] = globals()[class_name]
    if kind is ErofsError:
        kind = _BY_ERRNO.get(number, kind)
    error = kind(number, message, None if path is None else os.fsdecode(path))
    error.nid, error.byte = place
    return error
