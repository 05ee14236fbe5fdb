"""Closes the files that are being written in every process that is forked off meanwhile.

A data worker lives as long as training does: what it held open would take space on the disk long after retention has
deleted it, and keep a network file system from removing the folder.

Guarantees: a descriptor between `hide` and `show` is closed in a child right after the fork, before it runs anything. A
fork at the very moment between opening and `hide`, or between `show` and closing, may still inherit it. Any thread.
"""

from __future__ import annotations

import contextlib
import os

_HIDDEN: set[int] = set()


def hide(descriptor: int) -> int:
    """Close ``descriptor`` in every process that is forked off from now on; returns it."""
    _HIDDEN.add(descriptor)
    return descriptor


def show(descriptor: int) -> None:
    """Call before closing ``descriptor``: its number may be that of another file right afterwards."""
    _HIDDEN.discard(descriptor)


def _close_in_child() -> None:
    for descriptor in _HIDDEN:
        with contextlib.suppress(OSError):  # a network file system reports here what the parent is told as well
            os.close(descriptor)
    _HIDDEN.clear()


os.register_at_fork(after_in_child=_close_in_child)
