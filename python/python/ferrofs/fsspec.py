"""EROFS images as file systems of fsspec: the protocol ``erofs``.

>>> import ferrofs, fsspec
>>> _ = ferrofs.build([("docs/hello.txt", b"hello")], "a.erofs")
>>> fs = fsspec.filesystem("erofs", fo="a.erofs")
>>> fs.find("")
['docs/hello.txt']
>>> with fsspec.open("erofs://docs/hello.txt::a.erofs") as file:
...     file.read()
b'hello'
"""

from __future__ import annotations

import io
import os
import re
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import fsspec
from fsspec.archive import AbstractArchiveFileSystem
from fsspec.core import OpenFile
from fsspec.utils import glob_translate, tokenize

from ferrofs._paths import image_path
from ferrofs.errors import CorruptImageError, ErofsError, directory_loop, time_error
from ferrofs.image import LEADS_NOWHERE, Image
from ferrofs.info import NativeInode

__all__ = ["ErofsFileSystem"]

_LINK_TYPE = "link"
_MAGIC = re.compile("[*?[]")


class ErofsFileSystem(AbstractArchiveFileSystem):  # type: ignore[misc]
    """The files of an EROFS image, read-only.

    ``fo``, ``mode``, ``target_protocol`` and ``target_options`` are as for fsspec's
    ``ZipFileSystem``; ``offset``, ``devices`` and ``memory`` as for :class:`ferrofs.Image`.

    Each call reads the directories that it names, and no others; no listing of the whole image is
    made or kept. The ``type`` of a symlink is that of its target, or ``link`` if it leads nowhere;
    ``islink`` is true, and ``destination`` is the target. ``walk`` and ``find`` do not enter
    symlinks to directories.

    Instances are pickled by their arguments, may be used by many threads, and open the image again
    in a forked child.
    """

    root_marker = ""
    protocol = "erofs"
    cachable = False

    def __init__(
        self,
        fo: Any = "",
        mode: str = "r",
        target_protocol: str | None = None,
        target_options: dict[str, Any] | None = None,
        offset: int = 0,
        devices: Iterable[Any] = (),
        memory: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if mode not in ("r", "rb"):
            raise ValueError(f"an EROFS image is read with mode 'r', not {mode!r}")
        self.fo = fo
        self.mode = "r"
        self._target = (target_protocol, target_options or {})
        self._image_arguments = (offset, tuple(devices), memory)
        self._lock = threading.Lock()
        self._opened: tuple[int, Image, Any] | None = None
        self._is_closed = False
        self._open_image()

    @property
    def image(self) -> Image:
        """The image."""
        opened = self._opened
        if self._is_closed:
            raise ValueError("I/O operation on a closed file system")
        if opened is None or (opened[0] != os.getpid() and opened[2] is not None):
            return self._open_image()
        return opened[1]

    def _open_image(self) -> Image:
        """Opens the image, and again in a forked child: its file object belongs to the parent."""
        offset, devices, memory = self._image_arguments
        source, closer = self._source()
        try:
            image = Image(source, offset, devices, memory)
        except BaseException:
            if closer is not None:
                closer.__exit__(None, None, None)
            raise
        self._opened = (os.getpid(), image, closer)
        return image

    def _source(self) -> tuple[Any, Any]:
        """What :class:`ferrofs.Image` opens, and what is to be closed after it."""
        protocol, options = self._target
        fo = self.fo
        if isinstance(fo, (str, os.PathLike)):
            name = os.fspath(fo)
            if protocol in (None, "file", "local") and not options and os.path.exists(name):
                return name, None
            fo = fsspec.open(name, mode="rb", protocol=protocol, **options)
        if isinstance(fo, OpenFile):
            file = fo.__enter__()
            path = getattr(file, "path", None)
            if type(file).__name__ == "LocalFileOpener" and path and not file.compression:
                fo.__exit__(None, None, None)
                return path, None
            return file, fo
        return fo, None

    def close(self) -> None:
        """Closes the image. Later reads raise ``ValueError``."""
        self._is_closed = True
        self._close_image()

    def _close_image(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened[1].close()
            if opened[2] is not None:
                opened[2].__exit__(None, None, None)

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        stripped = super()._strip_protocol(path)
        return stripped.lstrip("/") if isinstance(stripped, str) else stripped

    def ukey(self, path: str) -> str:
        """A text that identifies the content of a file. The content never changes."""
        return str(tokenize(path, str(self.fo), self.protocol, self.info(path)["ino"]))

    def _get_dirs(self) -> None:
        """Nothing: no listing of the image is kept."""

    # One path.

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        """The metadata of a path. Symlinks are followed."""
        path = self._strip_protocol(path)
        native = self.image._native
        encoded = image_path(path)
        return self._info(path, native.stat(encoded, False))

    def _info(self, path: str, inode: NativeInode) -> dict[str, Any]:
        nid, mode, nlink, uid, gid, size, seconds, nanoseconds, _, _, _ = inode
        found = {
            "name": path,
            "size": size,
            "type": _type_of(mode),
            "mode": mode,
            "ino": nid,
            "nlink": nlink,
            "uid": uid,
            "gid": gid,
            "mtime": seconds + nanoseconds / 1e9,
            "islink": False,
        }
        if found["type"] == "directory":
            found["size"] = 0
        elif found["type"] == _LINK_TYPE:
            self._follow(path, found)
        return found

    def _follow(self, path: str, found: dict[str, Any]) -> None:
        native = self.image._native
        found["islink"] = True
        found["destination"] = os.fsdecode(native.readlink(image_path(path)))
        try:
            target = native.stat(image_path(path), True)
        except ErofsError as error:
            # In a listing, damage elsewhere is no reason to fail; a source that does not answer is.
            if error.errno in LEADS_NOWHERE or isinstance(error, CorruptImageError):
                return
            raise
        found["type"] = _type_of(target[1])
        found["size"] = 0 if found["type"] == "directory" else target[5]

    def exists(self, path: str, **kwargs: Any) -> bool:
        """Whether a path exists."""
        return self.image.exists(self._strip_protocol(path))

    def isdir(self, path: str) -> bool:
        """Whether a path is a directory, or a symlink to one."""
        return self.image.isdir(self._strip_protocol(path))

    def isfile(self, path: str) -> bool:
        """Whether a path is a regular file, or a symlink to one."""
        return self.image.isfile(self._strip_protocol(path))

    def modified(self, path: str) -> Any:
        """The modification time of a path, in UTC."""
        from datetime import datetime, timezone

        seconds = self.info(path)["mtime"]
        try:
            return datetime.fromtimestamp(seconds, tz=timezone.utc)
        except (OSError, OverflowError, ValueError):
            raise time_error(path, int(seconds)) from None

    created = modified

    # Directories.

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        """The entries of a directory, sorted; the path itself if it is a file."""
        path = self._strip_protocol(path)
        if detail:
            return self._ls(path, None)
        prefix = f"{path}/" if path else ""
        try:
            return sorted(prefix + name for name, _, _ in self.image._native.list(image_path(path)))
        except NotADirectoryError:
            self.info(path)
            return [path]

    def _ls(self, path: str, nid: int | None) -> list[dict[str, Any]]:
        """The entries of a directory, of which the nid may be known; the path itself if it is a
        file."""
        prefix = f"{path}/" if path else ""
        try:
            listed = self.image._native.list_inodes(image_path(path), nid)
        except NotADirectoryError:
            return [self.info(path)]
        found = [self._info(prefix + name, inode) for name, inode in listed]
        return sorted(found, key=lambda info: str(info["name"]))

    def walk(
        self,
        path: str,
        maxdepth: int | None = None,
        topdown: bool = True,
        on_error: str | Callable[[OSError], Any] = "omit",
        detail: bool = False,
        **kwargs: Any,
    ) -> Iterator[tuple[str, Any, Any]]:
        """Walks a tree, as ``AbstractFileSystem.walk``: path, directories and files. The latter two
        are lists of names; with ``detail``, dictionaries from names to their metadata."""
        if maxdepth is not None and maxdepth < 1:
            raise ValueError("maxdepth must be at least 1")
        top = self._strip_protocol(path)

        def report(error: OSError) -> None:
            if on_error == "raise":
                raise error
            if callable(on_error):
                on_error(error)

        # In a damaged image a directory can be below itself.
        entered: set[int] = set()
        # What is still to be entered, with its depth and nid, or to be yielded.
        stack: list[_Folder | tuple[str, Any, Any]] = [_Folder(top, 1, None)]
        while stack:
            visit = stack.pop()
            if not isinstance(visit, _Folder):
                yield visit
                continue
            folder, depth = visit.path, visit.depth
            try:
                directories, files, nids = self._sorted(visit, detail)
            except OSError as error:
                report(error)
                continue
            prefix = f"{folder}/" if folder else ""
            if topdown:
                yield folder, directories, files
            else:
                stack.append((folder, directories, files))
            if maxdepth is not None and depth >= maxdepth:
                continue
            below: list[_Folder] = []
            # Symlinks have no nid here, and are not entered.
            for name in directories:
                nid = nids.get(name)
                if nid in entered:
                    report(directory_loop(prefix + name))
                elif nid is not None:
                    entered.add(nid)
                    below.append(_Folder(prefix + name, depth + 1, nid))
            stack += reversed(below)

    def _sorted(self, visit: _Folder, detail: bool) -> tuple[Any, Any, dict[str, int]]:
        """Directories, files, and the nids of those directories that are not symlinks."""
        nids: dict[str, int] = {}
        folder = visit.path
        prefix = f"{folder}/" if folder else ""
        if detail:
            infos: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
            for info in self._ls(folder, visit.nid):
                name = info["name"][len(prefix) :]
                is_directory = info["type"] == "directory"
                infos[not is_directory][name] = info
                if is_directory and not info["islink"]:
                    nids[name] = info["ino"]
            return infos[0], infos[1], nids
        names: tuple[list[str], list[str]] = ([], [])
        image = self.image
        try:
            listed = image._native.list(image_path(folder), visit.nid)
        except NotADirectoryError:
            # Raised if the path leads through a file, so that it names nothing.
            self.info(folder)
            return [], [""], nids
        for name, bits, nid in listed:
            is_directory = bits == stat.S_IFDIR
            if is_directory:
                nids[name] = nid
            elif bits == stat.S_IFLNK:
                is_directory = image.isdir(prefix + name)
            names[not is_directory].append(name)
        return names[0], names[1], nids

    def find(
        self,
        path: str,
        maxdepth: int | None = None,
        withdirs: bool = False,
        detail: bool = False,
        **kwargs: Any,
    ) -> Any:
        """All files below a path, sorted; with ``withdirs`` the directories, too. With ``detail``,
        a dictionary from paths to their metadata.

        A path that does not exist has no files. If a directory cannot be read, the error is raised,
        also by ``glob``, ``get``, ``du`` and everything else that uses this method; otherwise,
        files would be missing in a copy without a message. ``walk`` has ``on_error`` instead."""
        path = self._strip_protocol(path)
        if detail:
            found: dict[str, Any] = {}
            if withdirs and path and self.isdir(path):
                found[path] = self.info(path)
            for _, directories, files in self.walk(path, maxdepth, on_error=_missing, detail=True):
                if withdirs:
                    found.update((info["name"], info) for info in directories.values())
                found.update((info["name"], info) for info in files.values())
            return {name: found[name] for name in sorted(found)}
        return sorted(name for name, is_dir in self._names(path, maxdepth) if withdirs or not is_dir)

    def _names(self, path: str, maxdepth: int | None) -> Iterator[tuple[str, bool]]:
        """The paths below a path, and whether each is a directory; the path itself comes first. No
        inodes are read."""
        if path and self.isdir(path):
            yield path, True
        for folder, directories, files in self.walk(path, maxdepth, on_error=_missing):
            prefix = f"{folder}/" if folder else ""
            for name in directories:
                yield prefix + name, True
            for name in files:
                # "" stands for a path that is a file itself.
                yield prefix + name if name else folder, False

    def glob(self, path: str, maxdepth: int | None = None, **kwargs: Any) -> Any:
        """The paths that match a pattern, as ``AbstractFileSystem.glob``, sorted. Only directories
        below the fixed first part of the pattern are listed, and only inodes of matches are
        read."""
        if maxdepth is not None and maxdepth < 1:
            raise ValueError("maxdepth must be at least 1")
        detail = kwargs.pop("detail", False)
        withdirs = kwargs.pop("withdirs", True)
        wants_directories = path.endswith("/")
        pattern_text = self._strip_protocol(path)
        magic = _MAGIC.search(pattern_text)
        if magic is None:
            names = [pattern_text] if self.exists(pattern_text) else []
            return {name: self.info(name) for name in names} if detail else names
        root = pattern_text[: magic.start()].rpartition("/")[0]
        depth: int | None = pattern_text[len(root) :].strip("/").count("/") + 1
        if "**" in pattern_text:
            below = pattern_text[pattern_text.find("**") :].count("/") + 1
            depth = None if maxdepth is None or depth is None else depth - below + maxdepth
        pattern = re.compile(glob_translate(pattern_text + ("/" if wants_directories else "")))
        with_slash = wants_directories or pattern_text.endswith("/**")
        matches = sorted(
            name
            for name, is_directory in self._names(root, depth)
            if (withdirs or not is_directory)
            and pattern.match(f"{name}/" if with_slash and is_directory else name)
        )
        return {name: self.info(name) for name in matches} if detail else matches

    # Contents.

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: Any = None,
        autocommit: bool = True,
        cache_options: Any = None,
        **kwargs: Any,
    ) -> io.BufferedReader:
        if mode != "rb":
            raise ValueError(f"an EROFS image is read-only: mode {mode!r}")
        size = block_size if isinstance(block_size, int) and block_size > 0 else -1
        file = self.image.open(self._strip_protocol(path), buffering=size)
        assert isinstance(file, io.BufferedReader)
        return file

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any
    ) -> bytes:
        """The bytes of a file from ``start`` to ``end``; negative numbers count from the end of the
        file."""
        path = self._strip_protocol(path)
        if start is None and end is None:
            return self.image.read(path)
        first, last = start or 0, end
        if first < 0 or (last is not None and last < 0):
            size = self.image.stat(path).st_size
            first = max(first + size, 0) if first < 0 else first
            last = last + size if last is not None and last < 0 else last
        count = (1 << 63) - 1 if last is None else max(last - first, 0)
        return self.image.read_range(path, first, count)

    def cat_ranges(
        self,
        paths: list[str],
        starts: Any,
        ends: Any,
        max_gap: int | None = None,
        on_error: str = "return",
        **kwargs: Any,
    ) -> list[Any]:
        """Parts of files. ``starts`` and ``ends`` are numbers, or lists of them."""
        if max_gap is not None:
            raise NotImplementedError("ranges are not merged")
        all_starts = starts if isinstance(starts, list) else [starts] * len(paths)
        all_ends = ends if isinstance(ends, list) else [ends] * len(paths)
        if not len(paths) == len(all_starts) == len(all_ends):
            raise ValueError("as many starts and ends as paths are needed")
        found: list[Any] = []
        for path, start, end in zip(paths, all_starts, all_ends):
            try:
                found.append(self.cat_file(path, start, end))
            except Exception as error:
                if on_error == "raise":
                    raise
                found.append(error)
        return found

    def get_xattr(self, path: str, name: str) -> bytes:
        """The value of an extended attribute."""
        return self.image.getxattr(self._strip_protocol(path), name)


@dataclass(frozen=True)
class _Folder:
    """A directory that a walk is to enter."""

    path: str
    depth: int
    nid: int | None
    """Its number; ``None`` if it is not known yet."""


def _missing(error: OSError) -> None:
    """What `find` and `glob` do about an error: only a path that is not there has nothing below."""
    if error.errno not in LEADS_NOWHERE:
        raise error


def _type_of(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "directory"
    if stat.S_ISREG(mode):
        return "file"
    return _LINK_TYPE if stat.S_ISLNK(mode) else "other"
