"""What a process does at a signal, kept and put back, also where that was set from C.

`signal.signal` puts back only what was set through Python: `faulthandler.register` and the C++ of frameworks set their
handlers past it. So the C library's own structure is kept beside it, unread. Guarantees: after `Disposition.restore`
the signal does what it did when the object was made. Main thread only.
"""

from __future__ import annotations

import ctypes
import os
import signal
from types import FrameType

_STRUCT_BYTES = 1024  # more than any C library's struct sigaction
_LIBC = ctypes.CDLL(None, use_errno=True)


class Disposition:
    """Of one signal, as it is now.

    Args:
        number: Of the signal.

    Raises:
        OSError: If there is no such signal.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._handler = signal.getsignal(number)
        self._action = ctypes.create_string_buffer(_STRUCT_BYTES)
        self._sigaction(None, self._action)

    @property
    def is_own(self) -> bool:
        """Whether the program has set a handler of its own in Python."""
        return callable(self._handler)

    def restore(self) -> None:
        """Put it back."""
        signal.signal(self._number, self._handler if self._handler is not None else signal.SIG_DFL)
        self._sigaction(self._action, None)

    def take(self, frame: FrameType | None) -> None:
        """Let it have a signal that came to nobody else."""
        if callable(self._handler):
            self._handler(self._number, frame)
        else:
            self.restore()
            os.kill(os.getpid(), self._number)

    def _sigaction(self, new: ctypes.Array[ctypes.c_char] | None, old: ctypes.Array[ctypes.c_char] | None) -> None:
        if _LIBC.sigaction(self._number, new, old) != 0:
            raise OSError(ctypes.get_errno(), f"sigaction({self._number}) failed")
