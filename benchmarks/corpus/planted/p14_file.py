# unknown: weights/0.bias
"""A running mean in a file of the process, which a restart makes anew."""

import tempfile

from base import train

file = tempfile.TemporaryFile("w+")  # noqa: SIM115 - open until the process ends


def centred(x):
    file.seek(0)
    before = float(file.read() or 0)
    file.seek(0)
    file.write(f"{0.9 * before + 0.1 * float(x.mean()):.12f}")
    return x - before


train(centred)
