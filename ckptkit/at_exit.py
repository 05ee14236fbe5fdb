"""What is done before the interpreter ends: saves and uploads under way are waited for, untold failures are told.

`atexit` keeps a slot for whatever was ever registered, and searches them all to unregister one: of a save each, they
would cost memory and time for as long as the process lives. So one function is registered there, at the first duty.

Guarantees: the newest duty is done first, as by `atexit`, and each once, whatever another one raises; a process that is
forked off does none of its parent's, because it has the memory but not the threads. Any thread.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable

Duty = Callable[[], None]


class AtExit:
    """The duties of this process; there is one, `AT_EXIT`."""

    def __init__(self) -> None:
        self._duties: dict[Duty, int] = {}
        self._registered = False

    def add(self, duty: Duty) -> None:
        """Do ``duty`` when the interpreter ends."""
        if not self._registered:
            self._registered = True
            atexit.register(self.fulfil)  # after `logging`'s own, hence called before it
        self._duties[duty] = os.getpid()

    def discard(self, duty: Duty) -> None:
        """There is no need of ``duty`` any more, if there was."""
        self._duties.pop(duty, None)

    def fulfil(self) -> None:
        """Do what is left, the newest first."""
        try:
            duty, process = self._duties.popitem()
        except KeyError:  # none, or another thread has discarded the last one just now
            return
        try:
            if process == os.getpid():
                duty()
        finally:
            self.fulfil()


AT_EXIT = AtExit()
