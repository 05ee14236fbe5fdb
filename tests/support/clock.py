"""A clock that counts its calls."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable


def clock_of_calls() -> Callable[[], float]:
    """A monotonic clock that is a millisecond later at each call.

    Whether a commit is followed by a file of events depends on the time that went by, and so do the calls of a save.
    Where calls are counted in one run and struck in the next, they must be the same ones on a slow machine.
    """
    return functools.partial(next, itertools.count(0.0, 0.001))
