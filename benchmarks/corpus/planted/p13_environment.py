# forgotten-state: environ
"""A counter in the environment of the process."""

import os

from base import train


def warmed(x):
    os.environ["CALLS"] = str(int(os.environ.get("CALLS", "0")) + 1)
    return x * min(1.0, int(os.environ["CALLS"]) / 30)


train(warmed)
