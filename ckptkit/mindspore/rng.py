"""Captures and restores the random state of a training process: Python's, NumPy's and MindSpore's.

Guarantees: `capture_rng` advances no generator, and `restore_rng` restores all that it took. State inside kernels is
not covered. Main thread only.
"""

from __future__ import annotations

import contextlib
import functools
import random
import secrets
import sys
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import mindspore as ms
import numpy as np

_MOST_BYTES, _CHUNK_BYTES = 2**26, 2**20  # of the draws without a seed that are counted


def capture_rng() -> dict[str, Any]:
    """Return the state of every process-wide generator, as plain values and arrays."""
    seeds = _seed_module()
    return {
        **capture_host_rng(),
        "mindspore": {
            "global_seed": seeds._GLOBAL_SEED,
            "kernel_seeds": [[list(key), value] for key, value in seeds._KERNEL_SEED.items()],
            "generator": np.array(ms.get_rng_state().asnumpy()),
        },
    }


def restore_rng(state: Mapping[str, Any], keep: Collection[str] = ()) -> None:
    """Restore what `capture_rng` took; call it last, since making an iterator or a seed draws random numbers.

    The generators ``"python"`` and ``"numpy"`` are left unchanged if they are in ``keep``.
    """
    seeds = _seed_module()
    mindspore = state["mindspore"]
    seeds._GLOBAL_SEED = mindspore["global_seed"]
    seeds._KERNEL_SEED.clear()
    seeds._KERNEL_SEED.update({tuple(key): value for key, value in mindspore["kernel_seeds"]})
    ms.set_rng_state(ms.Tensor(mindspore["generator"]))
    restore_host_rng({name: state[name] for name in ("python", "numpy") if name not in keep})


def capture_host_rng() -> dict[str, Any]:
    """Return the state of the two generators that any Python code may draw from, ``"python"`` and ``"numpy"``."""
    return {"python": random.getstate(), "numpy": np.random.get_state(legacy=False)}


def restore_host_rng(state: Mapping[str, Any]) -> None:
    if "numpy" in state:
        np.random.set_state(state["numpy"])
    if "python" in state:
        random.setstate(state["python"])


def host_rng_drawn(before: Mapping[str, Any]) -> frozenset[str]:
    """Return which of the two were drawn from since `capture_host_rng` returned ``before``."""
    drawn = set()
    if random.getstate() != before["python"]:
        drawn.add("python")
    now, then = np.random.get_state(legacy=False), before["numpy"]
    # A normal number that was kept back moves nothing else when it is drawn.
    places = [(state["state"]["pos"], state["has_gauss"]) for state in (now, then)]
    if places[0] != places[1] or not np.array_equal(now["state"]["key"], then["state"]["key"]):
        drawn.add("numpy")
    return frozenset(drawn)


@functools.cache
def words_drawn_unseeded() -> int:
    """Return how many 32-bit words NumPy's global generator has given by the first call; 0 if it was seeded.

    MindSpore's initializers take two for each parameter. Call it before the dataset's seed is set, which seeds this
    generator as well.
    """
    source = np.random.get_bit_generator()
    entropy = source.seed_seq if isinstance(source, np.random.MT19937) else None  # np.random.seed() removes it
    if not isinstance(entropy, np.random.SeedSequence):
        return 0
    now, begun = (np.random.RandomState(np.random.MT19937(entropy)) for _ in range(2))
    now.set_state(np.random.get_state())
    coming, given = now.bytes(32), b""
    for done in range(0, _MOST_BYTES, _CHUNK_BYTES):
        given = given[-len(coming) :] + begun.bytes(_CHUNK_BYTES)
        if coming in given:
            return (done + _CHUNK_BYTES - len(given) + given.index(coming)) // 4
    return _MOST_BYTES // 4


def seed_operators() -> None:
    """Seed MindSpore's operators if no seed is set; without a seed, no checkpoint can restore their draws."""
    seeds = _seed_module()
    if seeds._GLOBAL_SEED is None:
        seeds._GLOBAL_SEED = secrets.randbelow(2**31)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Restore Python's and NumPy's generators afterwards; ``mindspore.dataset.config.set_seed`` seeds both."""
    before = capture_host_rng()
    try:
        yield
    finally:
        restore_host_rng(before)


def _seed_module() -> Any:
    # Private, without a public alternative: PyNative keeps its per-operator seeds in these two names. The package
    # attribute of the same name is a function, hence sys.modules. If they move, the first capture raises
    # AttributeError and tests/unit/mindspore/test_rng.py fails.
    return sys.modules["mindspore.common.seed"]


def generator_state(value: Any) -> Any:
    """Return the state of a Python or NumPy random generator, or of a seed sequence; None for anything else.

    How many seeds were spawned is not a part of a generator's own state, but decides which ones come next.
    """
    if isinstance(value, np.random.SeedSequence):
        return {"spawned": value.n_children_spawned}
    if isinstance(value, np.random.Generator):
        state, spawned = value.bit_generator.state, spawned_of(value)
        return {**state, "spawned": spawned} if spawned else state
    if isinstance(value, np.random.RandomState):
        return value.get_state(legacy=False)
    has_state = isinstance(value, random.Random) and not isinstance(value, random.SystemRandom)
    return value.getstate() if has_state else None


def restore_generator(generator: Any, state: Any) -> None:
    """Give a generator the state that `generator_state` returned; seeds that were spawned since cannot be undone."""
    if isinstance(generator, (np.random.Generator, np.random.SeedSequence)):
        parts = dict(state)
        missing = parts.pop("spawned", 0) - spawned_of(generator)
        if missing > 0:
            generator.spawn(missing)
        if isinstance(generator, np.random.Generator):
            generator.bit_generator.state = parts
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(state)
    else:
        generator.setstate(state)


def spawned_of(value: Any) -> int:
    """Return how many seeds were spawned from a generator of NumPy or a seed sequence; 0 for anything else."""
    bit_generator = getattr(value, "bit_generator", None)
    seeds = value if isinstance(value, np.random.SeedSequence) else getattr(bit_generator, "seed_seq", None)
    return int(getattr(seeds, "n_children_spawned", 0))
