# differs
"""A running mean in an array of the standard library."""

import array

from base import train

mean = array.array("d", [0.0])


def centred(x):
    mean[0] = 0.9 * mean[0] + 0.1 * float(x.mean())
    return x - mean[0]


train(centred)
