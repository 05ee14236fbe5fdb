"""Runs callbacks when the interpreter exits, to wait for saves and uploads under way and to report failed saves.

`atexit` keeps a slot for every function ever registered and searches all slots to unregister one. One registration per
save would cost memory and time for the life of the process. This module therefore registers a single function, together
with the first callback.

Guarantees: the newest callback runs first, as with `atexit`. Each callback runs once, even if another one raises. A
forked process runs no callback of its parent, because it has the parent's memory but not its threads. A process of
`multiprocessing` runs its callbacks, too: it ends with `os._exit`, without `atexit`. Any thread may call this module.
"""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from collections.abc import Callable

Callback = Callable[[], None]


class LastCall:
    """Calls a method when the interpreter exits, if its object still exists then; add it to `AT_EXIT`.

    Args:
        method: A bound method; it does not keep its object alive.
    """

    def __init__(self, method: Callback) -> None:
        callbacks = AT_EXIT  # the interpreter may have taken this module's names when the object goes
        self._method = weakref.WeakMethod(method, lambda _: callbacks.discard(self))

    def __call__(self) -> None:
        """Call the method."""
        method = self._method()
        if method is not None:
            method()


class AtExit:
    """Holds the exit callbacks of this process; the only instance is `AT_EXIT`."""

    def __init__(self) -> None:
        self._callbacks: dict[Callback, int] = {}  # the value is the id of the process that added the callback
        self._registered_in: int | None = None  # id of a process

    def add(self, callback: Callback) -> None:
        """Run ``callback`` when the interpreter exits."""
        if self._registered_in != os.getpid():
            self._registered_in = os.getpid()
            atexit.register(self.run)  # registered after `logging`'s handler, so it runs before it
            multiprocessing = sys.modules.get("multiprocessing.process")  # a process of it has imported it
            if multiprocessing is not None and multiprocessing.parent_process() is not None:
                from multiprocessing.util import Finalize

                Finalize(None, self.run, exitpriority=0)
        self._callbacks[callback] = os.getpid()

    def discard(self, callback: Callback) -> None:
        """Remove ``callback`` if it was added."""
        self._callbacks.pop(callback, None)

    def run(self) -> None:
        """Run the remaining callbacks, the newest first."""
        try:
            callback, process = self._callbacks.popitem()
        except KeyError:  # no callback is left, or another thread has just discarded the last one
            return
        try:
            if process == os.getpid():
                callback()
        finally:
            self.run()


AT_EXIT = AtExit()
