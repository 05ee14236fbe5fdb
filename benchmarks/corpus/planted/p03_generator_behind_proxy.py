# forgotten-state: proxy[1][1]
"""A generator that is only reached through a weak proxy; its owner is in a C container."""

import itertools
import random
import weakref

from base import train


class Random(random.Random):
    pass


keeper = itertools.repeat(Random(7))
proxy = weakref.proxy(next(keeper))
train(lambda x: x * (1 + 0.1 * proxy.random()))
