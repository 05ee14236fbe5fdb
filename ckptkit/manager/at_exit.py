"""Runs callbacks when the interpreter exits: they wait for saves and uploads under way and report failed saves.

`atexit` keeps a slot for whatever was ever registered, and searches them all to unregister one: of a save each, they
would cost memory and time for as long as the process lives. So one function is registered there, with the first
callback.

Guarantees: the newest callback runs first, as by `atexit`, and each runs once, whatever another one raises; a forked
process runs none of its parent's, because it has the memory but not the threads. Any thread.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable

Callback = Callable[[], None]


class AtExit:
    """Holds the callbacks of this process; there is one, `AT_EXIT`."""

    def __init__(self) -> None:
        self._callbacks: dict[Callback, int] = {}  # with the process that added it
        self._registered = False

    def add(self, callback: Callback) -> None:
        """Run ``callback`` when the interpreter exits."""
        if not self._registered:
            self._registered = True
            atexit.register(self.run)  # after `logging`'s own, hence called before it
        self._callbacks[callback] = os.getpid()

    def discard(self, callback: Callback) -> None:
        """Do not run ``callback``, if it was added."""
        self._callbacks.pop(callback, None)

    def run(self) -> None:
        """Run what is left, the newest first."""
        try:
            callback, process = self._callbacks.popitem()
        except KeyError:  # none, or another thread has discarded the last one just now
            return
        try:
            if process == os.getpid():
                callback()
        finally:
            self.run()


AT_EXIT = AtExit()
