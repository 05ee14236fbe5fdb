"""The random state of a training process: Python's, NumPy's and MindSpore's.

Guarantees: `capture_rng` advances no generator, and `restore_rng` puts back all that `capture_rng` took. It
does not cover state inside kernels (`nn.Dropout` on CPU; `ckptkit.mindspore.findings` names such) nor generator
objects of the user's own, which come by name as stateful objects. Main thread only.
"""

from __future__ import annotations

import contextlib
import random
import secrets
import sys
from collections.abc import Iterator
from typing import Any

import mindspore as ms
import numpy as np


def capture_rng() -> dict[str, Any]:
    """The state of every process-wide generator, as plain values and arrays."""
    seeds = _seed_module()
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=False),
        "mindspore": {
            "global_seed": seeds._GLOBAL_SEED,
            "kernel_seeds": [[list(key), value] for key, value in seeds._KERNEL_SEED.items()],
            "generator": np.array(ms.get_rng_state().asnumpy()),
        },
    }


def restore_rng(state: dict[str, Any]) -> None:
    """Put back what `capture_rng` took; call it last, since making an iterator or a seed draws from them."""
    seeds = _seed_module()
    mindspore = state["mindspore"]
    seeds._GLOBAL_SEED = mindspore["global_seed"]
    seeds._KERNEL_SEED.clear()
    seeds._KERNEL_SEED.update({tuple(key): value for key, value in mindspore["kernel_seeds"]})
    ms.set_rng_state(ms.Tensor(mindspore["generator"]))
    np.random.set_state(state["numpy"])
    random.setstate(state["python"])


def seed_operators() -> None:
    """Give MindSpore's operators a seed where none is set; without one, no checkpoint brings their draws back.

    It is part of what `capture_rng` takes. The dataset's seed is another one.
    """
    seeds = _seed_module()
    if seeds._GLOBAL_SEED is None:
        seeds._GLOBAL_SEED = secrets.randbelow(2**31)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Leave Python's and NumPy's generators as they were; ``mindspore.dataset.config.set_seed`` seeds both."""
    python, numpy = random.getstate(), np.random.get_state(legacy=False)
    try:
        yield
    finally:
        np.random.set_state(numpy)
        random.setstate(python)


def _seed_module() -> Any:
    # Private, and there is no public way: per-operator seeds of PyNative live in these two names. The package
    # attribute of the same name is a function, hence sys.modules. Should they move, AttributeError says so at
    # the first capture, and tests/with_mindspore/test_rng.py fails.
    return sys.modules["mindspore.common.seed"]
