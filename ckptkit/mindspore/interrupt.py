"""Ctrl-C, as Python means it.

When a data iterator is made, MindSpore replaces the C handler of SIGINT by one that breaks every pipeline off and sends
SIGTERM to the own process. That ends a process without any exit handler, and where SIGTERM means preemption it would be
taken for one. Guarantees: after `keep_interrupt`, SIGINT reaches the handler that Python knows, until the next iterator
is made. Main thread; in others it does nothing.
"""

from __future__ import annotations

import signal
import threading


def keep_interrupt() -> None:
    """Give SIGINT back to Python's own handler; a microsecond."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handler)
