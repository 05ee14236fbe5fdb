# forgotten-state: count
"""A counter in memory of C."""

import ctypes

from base import train

count = ctypes.c_double(0.0)


def warmed(x):
    count.value += 1 / 30
    return x * min(1.0, count.value)


train(warmed)
