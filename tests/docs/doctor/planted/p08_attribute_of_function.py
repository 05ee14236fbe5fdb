# differs
"""A function that counts its calls in its own attribute."""

from base import train


def warmed(x):
    warmed.calls = getattr(warmed, "calls", 0) + 1
    return x * min(1.0, warmed.calls / 30)


train(warmed)
