"""Makes the thread that trains take denormal numbers as zero, as MindSpore's kernel threads do on x86-64.

MindSpore launches a CPU kernel in a thread of its pool or in the thread that calls it. Which one depends on the number
of launches in this process and on the time that they took. The pool's threads take denormal numbers as zero (FTZ and
DAZ in the register MXCSR), other threads do not. So results below 1.2e-38 (float32) would depend on where training was
resumed, and on chance.

Guarantees: between `DenormalsAsZero.begin` and `end` the calling thread has both bits, and so have threads and
processes that it starts meanwhile. Afterwards the thread has the bits of before. Other processors than x86-64 are left
as they are, since MindSpore sets nothing there. Each thread has its own register: call both in the thread that trains.
"""

from __future__ import annotations

import ctypes
import platform
import sys
import threading

import numpy as np

_FTZ_AND_DAZ = 0x8040
# fenv_t of x86-64 Linux (glibc's and musl's <fenv.h>): 28 bytes of the x87 environment, then MXCSR.
_WORDS, _MXCSR = 8, 7


class DenormalsAsZero:
    """Sets and restores how the calling thread computes with denormal numbers; several may overlap."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Take denormal numbers as zero from now on."""
        if not _IS_AFFECTED or self._thread is not None:
            return
        self._thread = threading.current_thread()  # not its number, which a later thread may have
        if not _HERE.users:
            for kind in (np.float16, np.float32, np.float64, np.longdouble):
                np.finfo(kind)  # kept by NumPy, which warns of the bits where it computes it first
            _HERE.before = _exchange(_FTZ_AND_DAZ)
        _HERE.users += 1

    def end(self) -> None:
        """Restore what was before the first `begin`; in another thread than that of `begin`, do nothing."""
        if self._thread is not threading.current_thread():
            return
        self._thread = None
        _HERE.users -= 1
        if not _HERE.users:
            _exchange(_HERE.before)


def takes_denormals_as_zero() -> bool:
    """Return whether the calling thread takes denormal numbers as zero."""
    return _IS_AFFECTED and _environment()[_MXCSR] & _FTZ_AND_DAZ == _FTZ_AND_DAZ


def _exchange(bits: int) -> int:
    """Set the two bits of the calling thread; returns what they were."""
    environment = _environment()
    before = environment[_MXCSR] & _FTZ_AND_DAZ
    environment[_MXCSR] = environment[_MXCSR] & ~_FTZ_AND_DAZ | bits
    _libm().fesetenv(environment)
    return before


def _environment() -> ctypes.Array[ctypes.c_uint32]:
    environment = (ctypes.c_uint32 * _WORDS)()
    _libm().fegetenv(environment)
    return environment


def _libm() -> ctypes.CDLL:
    return ctypes.CDLL(None)  # the interpreter is linked with it


class _Thread(threading.local):
    """What one thread has.

    Attributes:
        users: Number of `DenormalsAsZero` that have begun and not ended.
        before: The two bits before the first of them.
    """

    users = 0
    before = 0


_HERE = _Thread()
_IS_AFFECTED = sys.platform == "linux" and platform.machine() == "x86_64"
