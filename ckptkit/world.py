"""The ranks of a job, and the one thing they must be able to do together: tell each other something.

Guarantees nothing by itself: see the implementations. A gather is a collective: every rank calls it, in the same order,
from its training thread and from no other; whoever is missing keeps the others waiting until the framework gives up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class World(Protocol):
    """The seam is this small because data goes through the storage; only words go from rank to rank."""

    @property
    def rank(self) -> int:
        """Of this process, from 0."""
        ...

    @property
    def size(self) -> int:
        """Ranks in all."""
        ...

    def gather(self, message: str) -> Sequence[str]:
        """What each rank says, by rank; every rank gets all of it.

        Raises:
            RuntimeError: If the framework notices that a rank is gone.
        """
        ...


@dataclass(frozen=True)
class Alone:
    """A job of one rank."""

    rank: int = 0
    size: int = 1

    def gather(self, message: str) -> Sequence[str]:
        """As `World`."""
        return (message,)


ALONE = Alone()
