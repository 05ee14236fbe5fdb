# forgotten-state: first_mean
"""What a cache has kept from the first batch of a training."""

import functools

from base import train


def centred(x):
    @functools.wraps(centred)
    def shift():
        return first_mean(())

    LAST.append(float(x.mean()))
    return x - shift()


LAST = []


@functools.lru_cache(maxsize=1)
def first_mean(key):
    return LAST[-1]


train(centred)
