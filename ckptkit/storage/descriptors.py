"""Closes files that are being written in every child process forked meanwhile.

A data worker lives as long as training does. A file that it holds open takes disk space long after retention has
deleted it, and keeps a network file system from removing the folder.

Guarantees: a descriptor between `hide` and `show` is closed in a child right after the fork, before the child runs
anything. A fork between opening and `hide`, or between `show` and closing, may still inherit it. Any thread may call
these functions.
"""

from __future__ import annotations

import contextlib
import os

_HIDDEN: set[int] = set()


def hide(descriptor: int) -> int:
    """Close ``descriptor`` in every process forked from now on; returns ``descriptor``."""
    _HIDDEN.add(descriptor)
    return descriptor


def show(descriptor: int) -> None:
    """Undo `hide`. Call it before closing ``descriptor``: right afterwards another file may get its number."""
    _HIDDEN.discard(descriptor)


def _close_in_child() -> None:
    for descriptor in _HIDDEN:
        with contextlib.suppress(OSError):  # a network file system may fail here; the parent gets the same error
            os.close(descriptor)
    _HIDDEN.clear()


os.register_at_fork(after_in_child=_close_in_child)
