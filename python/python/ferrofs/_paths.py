"""Paths in an image, and where images are: the arguments that several modules take."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable
from typing import Any, Union

from ferrofs import _native

StrPath = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]
"""A path: text, bytes, or an object with ``__fspath__``."""

Source = Union[StrPath, bytearray, memoryview, Any]
"""Where an image is: a path, a URL, the bytes of the image, or a file object."""


def image_path(path: StrPath) -> bytes:
    """A path in an image as bytes. Text is encoded as :func:`os.fsencode` does it."""
    return path.encode("utf-8", "surrogateescape") if type(path) is str else os.fsencode(path)


def place_of(source: Source) -> tuple[str, Any]:
    """The kind of a source and what the compiled half opens.

    >>> place_of("https://example.org/a.erofs")[0]
    'url'
    >>> place_of(b"...")[0], place_of("a.erofs")[0]
    ('bytes', 'path')
    """
    if isinstance(source, str):
        return ("url", source) if _native.is_url(source) else ("path", source)
    if isinstance(source, (bytes, bytearray, memoryview)):
        return ("bytes", bytes(source))
    if isinstance(source, os.PathLike):
        return ("path", os.fsdecode(source))
    path = _path_of_file(source)
    if path is not None:
        return ("path", path)
    if not (hasattr(source, "read") and hasattr(source, "seek")):
        kind = type(source).__name__
        raise TypeError(f"an image is a path, a URL, bytes or a file object, not {kind}")
    return ("object", source)


def _path_of_file(source: Any) -> str | None:
    """The path of an open file of the system, by its descriptor: it can be read by offset, without
    Python. Only for the classes of which the content is that of the descriptor."""
    raw = source
    if type(raw) in (io.BufferedReader, io.BufferedRandom):
        raw = raw.raw
    if type(raw) is not io.FileIO:
        return None
    path = f"/proc/self/fd/{raw.fileno()}"
    if not os.access(path, os.R_OK):
        return None
    if source is not raw:
        # The descriptor does not have yet what was written to the buffer.
        source.flush()
    return path


def portable(source: Source) -> Source:
    """A source as another process can open it: relative paths become absolute."""
    if isinstance(source, (bytes, bytearray, memoryview)) or not isinstance(
        source, (str, os.PathLike)
    ):
        return source
    if isinstance(source, str) and _native.is_url(source):
        return source
    return os.path.abspath(os.fsdecode(source))


def places_of(source: Source, devices: Iterable[Source]) -> list[tuple[str, Any]]:
    """The places of an image and of its devices."""
    return [place_of(one) for one in (source, *devices)]
