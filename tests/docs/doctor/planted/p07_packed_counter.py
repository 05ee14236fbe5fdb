# differs
"""A counter in bytes that struct packs in place."""

import struct

from base import train

memory = memoryview(bytearray(8))


def warmed(x):
    (count,) = struct.unpack_from("<q", memory)
    struct.pack_into("<q", memory, 0, count + 1)
    return x * min(1.0, (count + 1) / 30)


train(warmed)
