"""EROFS images for Python: read, check, extract, mount and build them.

>>> import ferrofs
>>> report = ferrofs.build([("hello.txt", b"hello"), ("docs/a.md", b"# A")], "a.erofs")
>>> image = ferrofs.Image("a.erofs")
>>> image.read("hello.txt")
b'hello'
>>> with image.open("docs/a.md", buffering=-1) as file:
...     file.readline()
b'# A'
>>> [entry.name for entry in image.scandir()]
['docs', 'hello.txt']
>>> bool(image.check())
True

:mod:`ferrofs.fsspec` makes images file systems of fsspec (``erofs://``).
"""

from ferrofs import _process
from ferrofs.build import BuildReport, Entry, build
from ferrofs.errors import (
    BuildError,
    CancelledError,
    CheckError,
    CorruptImageError,
    ErofsError,
    ExistsError,
    ExtractError,
    IsADirectoryInImageError,
    MountError,
    NotADirectoryInImageError,
    NotAnImageError,
    NotFoundError,
    RemoteError,
    UnsupportedError,
)
from ferrofs.file import ErofsFile
from ferrofs.image import CheckResult, Image, Superblock
from ferrofs.info import ErofsDirEntry, ErofsInfo
from ferrofs.mount import mount

__all__ = [
    "BuildError",
    "BuildReport",
    "CancelledError",
    "CheckError",
    "CheckResult",
    "CorruptImageError",
    "Entry",
    "ErofsDirEntry",
    "ErofsError",
    "ErofsFile",
    "ErofsInfo",
    "ExistsError",
    "ExtractError",
    "Image",
    "IsADirectoryInImageError",
    "MountError",
    "NotADirectoryInImageError",
    "NotAnImageError",
    "NotFoundError",
    "RemoteError",
    "Superblock",
    "UnsupportedError",
    "build",
    "mount",
]

__version__ = "0.1.0"

_process.install()
