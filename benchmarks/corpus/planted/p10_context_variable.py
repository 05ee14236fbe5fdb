# exact
"""A value in a context variable."""

import contextvars

from base import train

level = contextvars.ContextVar("level", default=0.0)


def warmed(x):
    level.set(level.get() + 1 / 30)
    return x * min(1.0, level.get())


train(warmed)
