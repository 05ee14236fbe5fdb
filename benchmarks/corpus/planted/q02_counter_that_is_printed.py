# exact
"""A counter that no batch depends on."""

import itertools

from base import train

count = itertools.count()


def told(x):
    print("batch", next(count))
    return x * 1.0


train(told)
