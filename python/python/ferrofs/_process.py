"""Hooks for the ends of processes: forks and the exit of the interpreter."""

import atexit
import os

from ferrofs import _native


def install() -> None:
    """Installs the hooks. Called once, when the package is imported."""
    atexit.register(_native.stop_sources)
    os.register_at_fork(after_in_child=_native.forget_parent_reads)
