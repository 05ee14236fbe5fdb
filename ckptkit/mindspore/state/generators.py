"""Stores random generators of Python and NumPy, which a user gives by name.

Guarantees: a restored generator gives the same numbers, and spawns the same generators, as the stored one would have.
Main thread only.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from ckptkit.errors import StateMismatchError
from ckptkit.mindspore.rng import generator_state, spawned_of


class GeneratorHolder:
    """Stores a random generator of Python or NumPy, or a seed sequence, as a stateful object."""

    def __init__(
        self, one: np.random.Generator | np.random.RandomState | np.random.SeedSequence | random.Random
    ) -> None:
        self._one = one

    def state_dict(self) -> Any:
        """Return the generator's state."""
        return generator_state(self._one)

    def check(self, state: Any) -> None:
        """Compare with the state of a checkpoint, before anything is changed."""
        spawned = state.get("spawned", 0) if isinstance(state, dict) else 0
        if self._spawned() > spawned:
            raise StateMismatchError(
                f"the {type(self._one).__name__} has spawned {self._spawned()} times, and in the checkpoint {spawned} "
                "times, which cannot be undone. Nothing was changed. Make it anew before the restore"
            )

    def load_state_dict(self, state: Any) -> None:
        """Restore the generator's state."""
        if isinstance(self._one, (np.random.Generator, np.random.SeedSequence)):
            state = dict(state)
            missing = state.pop("spawned", 0) - self._spawned()
            if missing > 0:
                self._one.spawn(missing)
        if isinstance(self._one, np.random.Generator):
            self._one.bit_generator.state = state
        elif isinstance(self._one, np.random.RandomState):
            self._one.set_state(state)
        elif isinstance(self._one, random.Random):
            self._one.setstate(state)

    def _spawned(self) -> int:
        if isinstance(self._one, np.random.SeedSequence):
            return int(self._one.n_children_spawned)
        return spawned_of(self._one) if isinstance(self._one, np.random.Generator) else 0
