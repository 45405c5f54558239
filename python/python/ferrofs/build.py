"""Builds images: :func:`build`."""

from __future__ import annotations

import os
import stat
import uuid as uuid_module
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Union

from ferrofs import _native
from ferrofs._paths import StrPath, image_path
from ferrofs.image import Progress

__all__ = ["BuildReport", "Entry", "build"]


@dataclass(frozen=True)
class Entry:
    """An entry of an image that :func:`build` makes.

    Without ``mode``, an entry with ``target`` is a symlink, one with ``data`` or ``file`` is a
    regular file with the permissions 0o644, and any other is a directory. Only one of ``data``,
    ``file`` and ``target`` can be given. It must match the type in ``mode``.

    >>> Entry("bin/sh", target="dash").mode == 0o120777
    True
    """

    path: StrPath
    """The path in the image."""

    data: bytes | bytearray | memoryview | None = None
    """The content of a regular file."""

    file: StrPath | None = None
    """The path of a file that has the content. The file is read when the image is built."""

    target: StrPath | None = None
    """The target of a symlink. For a hard link, the path of an earlier entry."""

    hard_link: bool = False
    """Whether this entry is another name of the entry ``target``."""

    mode: int | None = None
    """Type and permissions, as in ``st_mode``."""

    uid: int = 0
    """Owner."""

    gid: int = 0
    """Group."""

    mtime_ns: int = 0
    """Modification time: nanoseconds since 1970."""

    xattrs: Mapping[str, bytes] = field(default_factory=dict)
    """Extended attributes."""

    rdev: int = 0
    """The device number of a device node."""

    def __post_init__(self) -> None:
        if self.mode is None:
            object.__setattr__(self, "mode", self._default_mode())

    def _default_mode(self) -> int:
        if self.target is not None and not self.hard_link:
            return stat.S_IFLNK | 0o777
        if self.data is not None or self.file is not None or self.hard_link:
            return stat.S_IFREG | 0o644
        return stat.S_IFDIR | 0o755


@dataclass(frozen=True)
class BuildReport:
    """The sizes of an image that :func:`build` has made."""

    size: int
    """Bytes of the image."""

    inodes: int
    """Inodes that have a name."""

    content_size: int
    """Bytes of all files together, before compression."""


BuildInput = Union[StrPath, Iterable[Union[Entry, "tuple[StrPath, Any]"]], Any]
"""A directory, a tar file, a file object with a tar archive, or entries."""


def build(
    source: BuildInput,
    output: StrPath,
    compression: str | None = "lz4hc,level=9",
    *,
    overwrite: bool = False,
    block_size: int = 4096,
    pcluster_size: int = 65536,
    dedupe: bool = False,
    fragments: str = "none",
    ztailpacking: bool = False,
    label: str = "",
    uuid: uuid_module.UUID | None = None,
    timestamp: int | None = None,
    exclude: Iterable[StrPath] = (),
    exclude_regex: Iterable[str] = (),
    all_root: bool = False,
    jobs: int | None = None,
    memory: int | None = None,
    progress: Progress | None = None,
) -> BuildReport:
    """Builds the image ``output``, and returns its sizes.

    ``source`` is a directory, a tar file (compressed with gzip, xz or zstd, or not), a file object
    from which a tar archive is read, or an iterable of entries: :class:`Entry`, or pairs of a path
    and its content (``bytes``; ``None`` for a directory). ``FileExistsError`` is raised if
    ``output`` exists, unless ``overwrite`` is true.

    ``compression`` is as for the command: ``lz4``, ``lz4hc``, ``lzma``, ``deflate``, ``libdeflate``
    or ``zstd`` with ``,level=N`` and ``,dictsize=N``. Several algorithms are separated by colons.
    ``None`` stores files without compression. ``pcluster_size`` is the maximum size of a compressed
    cluster in bytes. ``fragments`` says what is packed together: ``"none"``, the ``"tails"`` of
    files, or ``"all"`` files. ``dedupe`` stores equal parts of files only once. ``ztailpacking``
    stores the last cluster of a file next to its inode if it fits.

    ``uuid`` is all zeros by default. ``timestamp`` is the build time in seconds since 1970; by
    default, it is the newest time in the source. ``memory`` limits the memory of the build, in
    bytes (default: 512 MiB), and ``jobs`` the number of its threads (default: the number of CPUs).

    ``exclude`` has paths of a directory that are left out, and ``exclude_regex`` POSIX extended
    regular expressions for such paths. If they are given and the source is not a directory,
    :class:`ferrofs.BuildError` is raised (``EINVAL``).

    ``progress`` is called about ten times a second with the phase, and the numbers of entries and
    bytes so far. It is also called once before the build, and once at the end, when the image is
    complete but has no name yet. If it raises an exception, the build ends, and the exception is
    raised. If it returns ``False``, :class:`ferrofs.CancelledError` is raised. A build that fails
    leaves no file. There is one exception: if a signal arrives while the complete image gets its
    name, ``KeyboardInterrupt`` is raised, although the image exists.

    The thread that calls this function reads a file object, so that Ctrl-C ends a ``read`` that
    waits. Progress is not reported during such a ``read``.

    >>> report = build([("a", b"x" * 100000)], "a.erofs", "zstd,level=3")
    >>> report.content_size, report.size < 20000
    (100000, True)
    """
    options = _Options(
        output=os.fsdecode(output),
        overwrite=overwrite,
        compression=compression,
        block_size=block_size,
        pcluster_size=pcluster_size,
        dedupe=dedupe,
        fragments=fragments,
        inline_pclusters=ztailpacking,
        label=label.encode(),
        uuid=uuid.bytes if uuid is not None else bytes(16),
        timestamp=timestamp,
        exclude=[image_path(path).strip(b"/") for path in exclude],
        exclude_regex=list(exclude_regex),
        all_root=all_root,
        jobs=jobs,
        memory=memory,
    )
    return BuildReport(*_native.build(_source(source), options, progress))


def _source(source: BuildInput) -> tuple[str, Any]:
    if isinstance(source, (str, bytes, os.PathLike)):
        path = os.fsdecode(source)
        return ("directory" if os.path.isdir(path) else "tar", path)
    if hasattr(source, "read"):
        return ("stream", source)
    if not isinstance(source, Iterable):
        kind = type(source).__name__
        raise TypeError(f"an image is built of a directory, a tar file or entries, not {kind}")
    return ("entries", _entries(source))


def _entries(source: Iterable[Any]) -> Iterator[_Entry]:
    for given in source:
        if isinstance(given, Entry):
            entry = given
        else:
            path, content = given
            entry = Entry(path, data=content)
        data = None if entry.data is None else bytes(entry.data)
        target = None if entry.target is None else image_path(entry.target)
        yield _Entry(
            path=image_path(entry.path),
            mode=entry.mode or 0,
            uid=entry.uid,
            gid=entry.gid,
            mtime=divmod(entry.mtime_ns, 1_000_000_000),
            xattrs=[(image_path(name), value) for name, value in entry.xattrs.items()],
            target=target,
            is_hard_link=entry.hard_link,
            device=(os.major(entry.rdev), os.minor(entry.rdev)),
            data=data,
            file=None if entry.file is None else os.fsdecode(entry.file),
        )


@dataclass(frozen=True)
class _Entry:
    path: bytes
    mode: int
    uid: int
    gid: int
    mtime: tuple[int, int]
    xattrs: list[tuple[bytes, bytes]]
    target: bytes | None
    is_hard_link: bool
    device: tuple[int, int]
    data: bytes | None
    file: str | None


@dataclass(frozen=True)
class _Options:
    output: str
    overwrite: bool
    compression: str | None
    block_size: int
    pcluster_size: int
    dedupe: bool
    fragments: str
    inline_pclusters: bool
    label: bytes
    uuid: bytes
    timestamp: int | None
    exclude: list[bytes]
    exclude_regex: list[str]
    all_root: bool
    jobs: int | None
    memory: int | None
