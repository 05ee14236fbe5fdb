"""Touches what belongs to the process: what runs as it ends, its console, and how it computes with denormal numbers."""

from __future__ import annotations

import atexit
import ctypes
import logging
import os
import platform
import sys
import threading
import weakref
from collections.abc import Callable

import numpy as np

Callback = Callable[[], None]


class LastCall:
    """Has `AT_EXIT` call a bound method, if its object still exists then."""

    def __init__(self, method: Callback) -> None:
        callbacks = AT_EXIT  # the interpreter may have taken this module's names when the object goes
        self._method = weakref.WeakMethod(method, lambda _: callbacks.discard(self))
        callbacks.add(self)

    def __call__(self) -> None:
        method = self._method()
        if method is not None:
            method()


class AtExit:
    """Holds the exit callbacks of this process; the only instance is `AT_EXIT`. Any thread.

    The newest callback runs first, and each once, even if another one raises. A forked process runs none of its
    parent's, because it has the parent's memory but not its threads. `atexit` itself keeps a slot for every function
    that was ever registered, so it has one of these only.
    """

    def __init__(self) -> None:
        self._callbacks: dict[Callback, int] = {}  # the value is the id of the process that added the callback
        self._registered_in: int | None = None  # id of a process

    def add(self, callback: Callback) -> None:
        if self._registered_in != os.getpid():
            self._registered_in = os.getpid()
            atexit.register(self.run)  # registered after `logging`'s handler, so it runs before it
            # A process of `multiprocessing` ends with `os._exit`, without `atexit`; it has imported the module.
            multiprocessing = sys.modules.get("multiprocessing.process")
            if multiprocessing is not None and multiprocessing.parent_process() is not None:
                from multiprocessing.util import Finalize

                Finalize(None, self.run, exitpriority=0)
        self._callbacks[callback] = os.getpid()

    def discard(self, callback: Callback) -> None:
        self._callbacks.pop(callback, None)

    def run(self) -> None:
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


def show_log() -> None:
    """Send the ``ckptkit`` logger to stderr from INFO on, unless the program has its own logging."""
    logger = logging.getLogger("ckptkit")
    if logger.handlers or logging.getLogger().handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("[ckptkit] %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)


class DenormalsAsZero:
    """Makes the calling thread take denormal numbers as zero between `begin` and `end`; several may overlap.

    MindSpore launches a CPU kernel in a thread of its pool, which takes them as zero (FTZ and DAZ in the register MXCSR
    of x86-64), or in the thread that calls it, which does not; which one depends on the number of launches and their
    times. So results below 1.2e-38 (float32) would depend on where training was resumed, and on chance. Threads and
    processes that start meanwhile inherit the two bits.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        if not _IS_AFFECTED or self._thread is not None:
            return
        self._thread = threading.current_thread()  # not its number, which a later thread may have
        if not _HERE.users:
            for kind in (np.float16, np.float32, np.float64, np.longdouble):
                np.finfo(kind)  # kept by NumPy, which warns of the bits where it computes it first
            _HERE.before = _bits(_FTZ_AND_DAZ)
        _HERE.users += 1

    def end(self) -> None:
        """Restore what was before the first `begin`; in another thread than that of `begin`, do nothing."""
        if self._thread is not threading.current_thread():
            return
        self._thread = None
        _HERE.users -= 1
        if not _HERE.users:
            _bits(_HERE.before)


def takes_denormals_as_zero() -> bool:
    return _IS_AFFECTED and _bits() == _FTZ_AND_DAZ


def _bits(new: int | None = None) -> int:
    """Return the two bits of this thread, and set them to ``new``."""
    library, environment = ctypes.CDLL(None), (ctypes.c_uint32 * _WORDS)()
    library.fegetenv(environment)
    before = environment[_MXCSR] & _FTZ_AND_DAZ
    if new is not None:
        environment[_MXCSR] = environment[_MXCSR] & ~_FTZ_AND_DAZ | new
        library.fesetenv(environment)
    return before


class _Thread(threading.local):
    users = 0  # `DenormalsAsZero` that have begun and not ended
    before = 0  # the two bits before the first of them


_FTZ_AND_DAZ = 0x8040
# fenv_t of x86-64 Linux (glibc's and musl's <fenv.h>): 28 bytes of the x87 environment, then MXCSR.
_WORDS, _MXCSR = 8, 7
_HERE = _Thread()
_IS_AFFECTED = platform.machine() == "x86_64"
