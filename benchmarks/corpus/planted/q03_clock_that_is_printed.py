# exact
"""Durations that no batch depends on."""

import time

from base import train

times = []


def timed(x):
    times.append(time.perf_counter())
    return x + 0.0


train(timed)
