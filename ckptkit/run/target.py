"""What an attempt is opened for: a training state, here or in all ranks of a job, that takes a checkpoint over.

Guarantees nothing by itself. Training thread only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ckptkit.checkpoint.open import OpenedCheckpoint
from ckptkit.checkpoint.verify import load
from ckptkit.core.contents import Contents
from ckptkit.storage import Storage


class Restorable(Protocol):
    """The half of `ckptkit.snapshot.Capturable` that takes a state over."""

    def apply(self, contents: Contents) -> None:
        """Take over ``contents``, all of it or nothing: what reading it overwrote is out of use until another call."""
        ...

    def begin(self, root: str) -> None:
        """Take the state as it is for a fresh start at ``root``; raises if it is not one."""
        ...


class Target(Protocol):
    """The seam between the protocol of a start and the one rank, or the many, that it starts."""

    def take(self, storage: Storage, opened: OpenedCheckpoint, report: Callable[[int], None]) -> Contents:
        """Load and apply ``opened`` in every rank, and return what this one applied; raises what any of them raised."""
        ...

    def begin(self, root: str) -> None:
        """Begin afresh at ``root`` in every rank; raises what any of them raised."""
        ...


class OneRank:
    """The `Target` of a job of one rank.

    Args:
        state: Its state.
    """

    def __init__(self, state: Restorable) -> None:
        self._state = state

    def take(self, storage: Storage, opened: OpenedCheckpoint, report: Callable[[int], None]) -> Contents:
        """As `Target`."""
        contents = load(storage, opened, report=report)
        self._state.apply(contents)
        return contents

    def begin(self, root: str) -> None:
        """As `Target`."""
        self._state.begin(root)
