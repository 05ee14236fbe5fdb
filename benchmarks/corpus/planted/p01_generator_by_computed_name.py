# exact
"""A generator behind an attribute whose name is computed."""

import numpy as np
from base import train


class Holder:
    pass


holder = Holder()
setattr(holder, "".join(("r", "ng")), np.random.default_rng(7))
train(lambda x: x * (1 + 0.1 * float(getattr(holder, "r" + "ng").normal())))
