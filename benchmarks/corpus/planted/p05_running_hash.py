# forgotten-state: seen
"""The state of a hash is inside an object in C."""

import hashlib

from base import train

seen = hashlib.sha256()


def masked(x):
    seen.update(x.asnumpy().tobytes())
    return x * (0.5 + seen.digest()[0] / 256)


train(masked)
