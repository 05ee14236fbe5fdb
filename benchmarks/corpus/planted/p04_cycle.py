# exact
"""The position in a cycle is inside an object in C."""

import itertools

from base import train

scales = itertools.cycle([1.0, 0.9, 1.1, 0.8, 1.2, 0.7, 1.3])
train(lambda x: x * next(scales))
