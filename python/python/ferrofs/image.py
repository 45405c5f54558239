"""Images: :class:`Image` opens one and reads it."""

from __future__ import annotations

import errno
import io
import operator
import os
import stat
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, overload

from ferrofs import _native
from ferrofs._paths import Source, StrPath, image_path, places_of, portable
from ferrofs.errors import CheckError, ErofsError, ExtractError, directory_loop
from ferrofs.file import ErofsFile
from ferrofs.info import ErofsDirEntry, ErofsInfo, ScandirIterator, stat_result

__all__ = ["CheckResult", "Image", "Progress", "Superblock"]

Progress = Callable[[str, int, int], Any]
"""A function that is called at intervals with the phase, and the numbers of entries and bytes so
far. To cancel, it returns ``False``, and :class:`ferrofs.CancelledError` is raised; or it raises an
exception of its own. When :meth:`Image.check` and :meth:`Image.extractall` have done everything,
they call it once more. An exception is raised even then, but ``False`` is ignored, because nothing
is left to cancel."""


@dataclass(frozen=True)
class Superblock:
    """The superblock of an image."""

    block_size: int
    """Bytes of a block."""

    blocks: int
    """Blocks of the image."""

    inodes: int
    """Inodes of the image."""

    uuid: uuid.UUID
    """UUID."""

    label: str
    """Label."""

    timestamp: int
    """The build time of the image: seconds since 1970."""


@dataclass(frozen=True)
class CheckResult:
    """What :meth:`Image.check` found. As a ``bool``, it is true if there are no problems."""

    inodes: int
    """Inodes that were checked."""

    bytes: int
    """Bytes of files that were decoded."""

    problem_count: int
    """Problems that were found."""

    problems: list[ErofsError] = field(default_factory=list)
    """The first problems, 1,000 at most, as exceptions with path, nid and byte."""

    def __bool__(self) -> bool:
        return self.problem_count == 0

    def raise_for_problems(self) -> None:
        """Raises a :class:`ferrofs.CheckError` if there are problems."""
        if self.problem_count:
            first = self.problems[0]
            message = f"{self.problem_count} problems; the first: {first.strerror}"
            error = CheckError(first.errno, message, first.filename)
            error.nid, error.byte, error.problems = first.nid, first.byte, self.problems
            raise error


class Image:
    """An EROFS image, open for reading.

    ``source`` is a path, a file object, the bytes of an image, or a URL; a URL is read through the
    program ``ferrofs-fetch``, as by the command. The image starts at byte ``offset`` of the source.
    ``devices`` are the sources of its extra devices, in the order of its device table. ``memory``
    limits the memory for reading, in bytes (default: 256 MiB, or an eighth of the system's memory
    if that is less).

    Any number of threads may use an image. It can be pickled if its source can be pickled, and it
    can be used in a forked child, which opens it again.

    >>> import ferrofs
    >>> _ = ferrofs.build([("docs/hello.txt", b"hello")], "a.erofs")
    >>> with ferrofs.Image("a.erofs") as image:
    ...     image.namelist()
    ...     image.read("docs/hello.txt")
    ['docs/', 'docs/hello.txt']
    b'hello'
    """

    def __init__(
        self,
        source: Source,
        offset: int = 0,
        devices: Iterable[Source] = (),
        memory: int | None = None,
    ) -> None:
        self._source = portable(source)
        self._offset = offset
        self._devices = tuple(portable(device) for device in devices)
        self._memory = memory
        self._open(source)

    def _open(self, source: Source) -> None:
        self._identity = object()
        places = places_of(source, self._devices)
        try:
            self._native = _native.NativeImage(places, self._offset, self._memory)
        except ErofsError as error:
            if error.filename is None and places[0][0] in ("path", "url"):
                error.filename = _native.display_form(places[0][1])
            raise

    # The image as a whole.

    @property
    def filename(self) -> str | None:
        """The path or URL of the image, if it has one."""
        return self._source if isinstance(self._source, str) else None

    @property
    def superblock(self) -> Superblock:
        """The superblock."""
        block_size, blocks, inodes, number, label, timestamp = self._native.superblock()
        text = label.decode("utf-8", "replace")
        return Superblock(block_size, blocks, inodes, uuid.UUID(bytes=number), text, timestamp)

    @property
    def closed(self) -> bool:
        """Whether the image was closed."""
        return self._native.closed

    def close(self) -> None:
        """Closes the image, and its file if it has a path. Files of it cannot be read any more."""
        self._native.close()

    def __enter__(self) -> Image:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    # A subclass keeps its class and attributes, whatever its `__init__` takes.

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        del state["_native"], state["_identity"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open(self._source)

    def __repr__(self) -> str:
        name = self.filename
        # A URL may have a signature, and what is printed may be kept in a log.
        name = _native.display_form(name) if name else f"<{type(self._source).__name__}>"
        return f"<ferrofs.Image {name!r}{', closed' if self.closed else ''}>"

    def check(self, path: StrPath = "/", progress: Progress | None = None) -> CheckResult:
        """Verifies the image, or what ``path`` names: all metadata, and every byte of every file.

        Problems are results, not exceptions; :meth:`CheckResult.raise_for_problems` raises one. A
        ``path`` that leads nowhere is no problem of the image: :class:`ferrofs.NotFoundError` or
        :class:`NotADirectoryError` is raised. A symlink at the end of ``path`` is checked itself.
        """
        return CheckResult(*self._native.check(image_path(path), progress))

    # Names, as in zipfile.

    def namelist(self) -> list[str]:
        """The paths of all entries except the root; those of directories end with a slash."""
        names: list[str] = []
        for folder, entries in self._walk_entries():
            prefix = f"{folder}/" if folder else ""
            names += [
                f"{prefix}{name}/" if bits == stat.S_IFDIR else f"{prefix}{name}"
                for name, bits, _ in entries
            ]
        return sorted(names)

    def infolist(self) -> list[ErofsInfo]:
        """The metadata of all entries except the root."""
        found: list[ErofsInfo] = []
        folders: list[tuple[str, int | None]] = [("", None)]
        entered: set[int] = set()
        while folders:
            folder, number = folders.pop()
            visit = _Visit(folder, [], entered)
            for name, inode in self._native.list_inodes(image_path(folder), number):
                path = visit.prefix + name
                found.append(ErofsInfo._of(path, inode, self._identity))
                nid, mode = inode[:2]
                if stat.S_ISDIR(mode):
                    visit.enter(name, nid)
                    folders.append((path, nid))
        return sorted(found, key=_filename)

    def getinfo(self, name: StrPath) -> ErofsInfo:
        """The metadata of an entry. Symlinks are not followed."""
        path = os.fsdecode(image_path(name)).strip("/")
        return ErofsInfo._of(path, self._native.stat(image_path(name), False), self._identity)

    def read(self, name: StrPath | ErofsInfo) -> bytes:
        """The content of a file. Symlinks are followed.

        With an :class:`ErofsInfo` of this image, no path is looked up.
        """
        if not isinstance(name, ErofsInfo):
            return self._native.read(image_path(name), None)
        path = image_path(name.filename)
        if name._image is self._identity and stat.S_ISREG(name.mode):
            return self._native.read_nid(name.nid, name.file_size, path)
        return self._native.read(path, None)

    def read_range(self, name: StrPath, offset: int, size: int) -> bytes:
        """At most ``size`` bytes of a file from byte ``offset`` on. Symlinks are followed."""
        return self._native.read(image_path(name), (offset, size))

    @overload
    def open(
        self,
        name: StrPath | ErofsInfo,
        mode: str = "rb",
        buffering: Literal[0] = 0,
    ) -> ErofsFile: ...
    @overload
    def open(
        self,
        name: StrPath | ErofsInfo,
        mode: str = "rb",
        buffering: int = 0,
    ) -> ErofsFile | io.BufferedReader: ...
    def open(
        self,
        name: StrPath | ErofsInfo,
        mode: str = "rb",
        buffering: int = 0,
    ) -> ErofsFile | io.BufferedReader:
        """Opens a file for reading. Symlinks are followed.

        The result is an :class:`io.RawIOBase`. If ``buffering`` is not 0, it is an
        :class:`io.BufferedReader` with a buffer of this number of bytes; a negative number means
        ``io.DEFAULT_BUFFER_SIZE``. Use it to read lines, or a few bytes at a time.
        """
        if mode not in ("r", "rb"):
            raise ValueError(f"files of an image are read with mode 'r' or 'rb', not {mode!r}")
        path = image_path(name.filename if isinstance(name, ErofsInfo) else name)
        file = ErofsFile(self, path, _native.NativeFile(self._native, path))
        if buffering == 0:
            return file
        return io.BufferedReader(file, buffering if buffering > 0 else io.DEFAULT_BUFFER_SIZE)

    def extract(self, member: StrPath | ErofsInfo, path: StrPath | None = None) -> str:
        """Extracts an entry, and what is below it, to the directory ``path`` (default: the current
        directory).

        Returns the path of what was extracted.
        """
        name = os.fsdecode(image_path(member.filename if isinstance(member, ErofsInfo) else member))
        self._native.stat(image_path(name), False)
        self.extractall(path, [name])
        return os.path.join(os.fsdecode(path or os.getcwd()), name.strip("/"))

    def extractall(
        self,
        path: StrPath | None = None,
        members: Iterable[StrPath] | None = None,
        *,
        preserve: bool = False,
        root_metadata: bool | None = None,
        max_output: int | None = None,
        max_work: int | None = None,
        progress: Progress | None = None,
    ) -> int:
        """Extracts all entries, or ``members`` and what is below them, to the directory ``path``
        (default: the current directory). Returns the number of extracted entries. Files that exist
        are replaced; nothing is written outside of the directory. In ``members``, no character is
        special.

        Without ``preserve``, the caller owns all entries, they have neither set-id bits nor
        extended attributes, and device nodes are left out. With ``preserve``, all of these are
        preserved, as far as the caller has the right.

        By default, a directory ``path`` that exists keeps its mode, owner and times, and a new one
        gets those of the root of the image, by the same rules. With ``root_metadata=True``, one
        that exists gets them as well. With ``False``, neither gets them, and only its owner has
        access to a new directory (0o700).

        ``max_output`` is the maximum number of bytes to write, without holes (default: 16 GiB plus
        8 KiB for each byte of the image). ``max_work`` limits repeated work; a byte of work takes
        about a nanosecond (default: 256 MiB plus 512 bytes for each byte of the image).
        Beyond a limit, the extraction ends with a :class:`ferrofs.ErofsError`.
        """
        target = os.fsdecode(path) if path is not None else os.getcwd()
        chosen = [] if members is None else [image_path(member) for member in members]
        if members is not None and not chosen:
            return 0
        given = _Extraction(target, chosen, preserve, root_metadata, max_output, max_work)
        entries, _, failed, failures = self._native.extract(given, progress)
        if failed:
            first = failures[0]
            message = f"{failed} entries could not be extracted; the first: {first.strerror}"
            error = ExtractError(first.errno, message, first.filename)
            error.nid, error.byte, error.failures = first.nid, first.byte, failures
            error.failed = failed
            raise error
        return entries

    # Names, as in os.

    def listdir(self, path: StrPath = "/") -> list[str]:
        """The names in a directory."""
        return [name for name, _, _ in self._native.list(image_path(path))]

    def scandir(self, path: StrPath = "/") -> ScandirIterator:
        """The entries of a directory, as :func:`os.scandir`. It reads no inodes."""
        folder = os.fsdecode(image_path(path))
        listed = self._native.list(image_path(path))
        return ScandirIterator([ErofsDirEntry(self, folder, entry) for entry in listed])

    def walk(
        self,
        top: StrPath = "/",
        topdown: bool = True,
        onerror: Callable[[OSError], object] | None = None,
        followlinks: bool = False,
    ) -> Iterator[tuple[str, list[str], list[str]]]:
        """Walks a tree as :func:`os.walk`: path, names of directories, names of other entries.

        With ``topdown``, the caller can remove the names of directories that should not be entered.
        """
        path = os.fsdecode(image_path(top))
        folder = path.rstrip("/") or ("/" if path.startswith("/") else "")
        try:
            listed = self._native.list(image_path(folder))
        except OSError as error:
            if onerror is not None:
                onerror(error)
            return
        # What is still to be entered, or to be yielded.
        stack: list[_Visit | tuple[str, list[str], list[str]]] = [_Visit(folder, listed, set())]
        while stack:
            visit = stack.pop()
            if not isinstance(visit, _Visit):
                yield visit
                continue
            directories, others, links, nids = self._sorted_entries(visit)
            if topdown:
                yield visit.folder, directories, others
            else:
                stack.append((visit.folder, directories, others))
            below: list[_Visit] = []
            for name in directories:
                if name in links and not followlinks:
                    continue
                try:
                    # A name that the caller has added has no nid here.
                    listed = self._native.list(image_path(visit.prefix + name), nids.get(name))
                except OSError as error:
                    if onerror is not None:
                        onerror(error)
                    continue
                # Loops of symlinks end at the limit of links in a path.
                entered = set() if name in links else visit.entered
                below.append(_Visit(visit.prefix + name, listed, entered))
            stack += reversed(below)

    def _sorted_entries(
        self, visit: _Visit
    ) -> tuple[list[str], list[str], set[str], dict[str, int]]:
        """Directories, others, which of the directories are symlinks to one, and the nids of those
        that are not."""
        directories: list[str] = []
        others: list[str] = []
        links: set[str] = set()
        nids: dict[str, int] = {}
        for name, bits, nid in visit.listed:
            if bits == stat.S_IFDIR:
                visit.enter(name, nid)
                directories.append(name)
                nids[name] = nid
            elif bits == stat.S_IFLNK and self._leads_to_directory(visit.prefix + name):
                directories.append(name)
                links.add(name)
            else:
                others.append(name)
        return directories, others, links, nids

    def _leads_to_directory(self, path: str) -> bool:
        try:
            return self.isdir(path)
        except OSError:
            return False

    def _walk_entries(self) -> Iterator[tuple[str, list[tuple[str, int, int]]]]:
        """Each directory with its entries. Symlinks are not followed, and no inodes are read."""
        folders: list[tuple[str, int | None]] = [("", None)]
        entered: set[int] = set()
        while folders:
            folder, number = folders.pop()
            visit = _Visit(folder, self._native.list(image_path(folder), number), entered)
            yield folder, visit.listed
            for name, bits, nid in reversed(visit.listed):
                if bits == stat.S_IFDIR:
                    visit.enter(name, nid)
                    folders.append((visit.prefix + name, nid))

    def stat(self, path: StrPath, *, follow_symlinks: bool = True) -> os.stat_result:
        """The metadata of the inode at a path. ``st_ino`` is its nid."""
        return stat_result(self._native.stat(image_path(path), follow_symlinks))

    def lstat(self, path: StrPath) -> os.stat_result:
        """As :meth:`stat`, but symlinks at the end of the path are not followed."""
        return self.stat(path, follow_symlinks=False)

    def _stat_nid(self, nid: int) -> os.stat_result:
        return stat_result(self._native.stat_nid(nid))

    def readlink(self, path: StrPath) -> str:
        """The target of a symlink."""
        return os.fsdecode(self._native.readlink(image_path(path)))

    def listxattr(self, path: StrPath, *, follow_symlinks: bool = True) -> list[str]:
        """The names of all extended attributes."""
        names = self._native.listxattr(image_path(path), follow_symlinks)
        return [os.fsdecode(name) for name in names]

    def getxattr(
        self, path: StrPath, attribute: StrPath, *, follow_symlinks: bool = True
    ) -> bytes:
        """The value of an extended attribute. If it does not exist, ``OSError`` with ``ENODATA`` is
        raised."""
        name = image_path(attribute)
        return self._native.getxattr(image_path(path), name, follow_symlinks)

    def exists(self, path: StrPath) -> bool:
        """Whether a path exists. Symlinks are followed."""
        return self._is(lambda mode: True, path)

    def isdir(self, path: StrPath) -> bool:
        """Whether a path is a directory, or a symlink to one."""
        return self._is(stat.S_ISDIR, path)

    def isfile(self, path: StrPath) -> bool:
        """Whether a path is a regular file, or a symlink to one."""
        return self._is(stat.S_ISREG, path)

    def _is(self, test: Callable[[int], bool], path: StrPath) -> bool:
        try:
            return test(self._native.stat(image_path(path), True)[1])
        except ErofsError as error:
            if error.errno in LEADS_NOWHERE:
                return False
            raise


_filename = operator.attrgetter("filename")

LEADS_NOWHERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""The errors of a path that leads to nothing. No error of a source has one of these numbers."""


@dataclass
class _Visit:
    """A directory that a walk enters."""

    folder: str
    listed: list[tuple[str, int, int]]
    entered: set[int]

    @property
    def prefix(self) -> str:
        return self.folder if self.folder.endswith("/") or not self.folder else f"{self.folder}/"

    def enter(self, name: str, nid: int) -> None:
        """Refuses a directory that was entered before: in a damaged image it can be below itself."""
        if nid in self.entered:
            raise directory_loop(self.prefix + name)
        self.entered.add(nid)


@dataclass(frozen=True)
class _Extraction:
    destination: str
    members: list[bytes]
    preserve: bool
    root_metadata: bool | None
    max_output: int | None
    max_work: int | None
