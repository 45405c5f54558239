"""Mounts images: :func:`mount`."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator

from ferrofs import _native
from ferrofs._paths import StrPath
from ferrofs.errors import MountError

__all__ = ["mount"]

_PROGRAM_VARIABLE = "FERROFS"
_TIMEOUT_SECONDS = 60.0


@contextlib.contextmanager
def mount(
    source: StrPath,
    mountpoint: StrPath | None = None,
    *,
    offset: int = 0,
    devices: Iterable[StrPath] = (),
    memory: int | None = None,
    options: Iterable[str] = (),
) -> Iterator[str]:
    """Mounts the image file ``source`` with FUSE for the time of a ``with`` block.

    The value is the mount point: the directory ``mountpoint``, or a temporary directory.
    ``memory`` is the limit of ``--memory`` in bytes, and ``options`` are further arguments of
    ``ferrofs mount``. If the image cannot be unmounted at the end, for example because a file of it
    is still open, :class:`ferrofs.MountError` is raised, and a temporary directory stays.

    The program ``ferrofs`` serves the mount, in a sandbox. It is the program that the environment
    variable ``FERROFS`` names, or the one in ``PATH``. If there is none,
    :class:`ferrofs.MountError` is raised. This process does not serve the mount itself: if it
    waited for a file of the mount while it holds the interpreter's lock, it would wait for itself.

    .. code-block:: python

        with ferrofs.mount("app.erofs") as path:
            subprocess.run([f"{path}/bin/app"])
    """
    program = _program(source)
    arguments = [program, "mount", *options]
    if offset:
        arguments.append(f"--offset={offset}")
    if memory is not None:
        arguments.append(f"--memory={memory}")
    arguments += [f"--device={os.fsdecode(device)}" for device in devices]
    temporary = tempfile.mkdtemp(prefix="ferrofs-") if mountpoint is None else None
    target = os.path.abspath(os.fsdecode(temporary or mountpoint or ""))
    try:
        _run([*arguments, "--", os.fsdecode(source), target], source)
    except BaseException:
        # Refused by the system if the image is mounted there all the same.
        with contextlib.suppress(OSError):
            if temporary:
                os.rmdir(temporary)
        raise
    try:
        yield target
    finally:
        _unmount(target)
        # Only an empty directory: never what is below a mount point.
        if temporary:
            os.rmdir(temporary)


def _program(source: StrPath) -> str:
    program = shutil.which(os.environ.get(_PROGRAM_VARIABLE) or "ferrofs")
    if program is None:
        message = "a mount needs the program ferrofs: install it, or name it in FERROFS"
        raise MountError(errno.ENOENT, message, _native.display_form(os.fsdecode(source)))
    return program


def _unmount(target: str) -> None:
    helper = shutil.which("fusermount3") or shutil.which("fusermount")
    command = [helper, "-u", "--", target] if helper else ["umount", "--", target]
    _run(command, target)


def _run(command: list[str], path: StrPath) -> None:
    shown = _native.display_form(os.fsdecode(path))
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=_TIMEOUT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        message = f"{command[0]} did not end within {_TIMEOUT_SECONDS:.0f} s"
        # The exception of the timeout shows the command, with the whole URL.
        raise MountError(errno.ETIMEDOUT, message, shown) from None
    if done.returncode:
        message = done.stderr.decode("utf-8", "replace").strip() or f"{command[0]} failed"
        raise MountError(errno.EIO, message, shown)
