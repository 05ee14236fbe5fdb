# exact
"""A value in thread-local storage."""

import threading

from base import train

local = threading.local()


def warmed(x):
    local.calls = getattr(local, "calls", 0) + 1
    return x * min(1.0, local.calls / 30)


train(warmed)
