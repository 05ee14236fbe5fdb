"""The ranks of a job, and what they must be able to do together: tell each other something.

Guarantees nothing by itself: see the implementations. Both ways to do it are collectives: every rank calls them, in the
same order, from its training thread and from no other; whoever is missing keeps the others waiting until the framework
gives up.
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
        """What each rank says, by rank; every rank gets all of it, so it should be short.

        Raises:
            RuntimeError: If the framework notices that a rank is gone.
        """
        ...

    def broadcast(self, message: str) -> str:
        """What rank 0 says, which may be long; what the others give does not matter. Raises as `gather`."""
        ...


@dataclass(frozen=True)
class Alone:
    """A job of one rank."""

    rank: int = 0
    size: int = 1

    def gather(self, message: str) -> Sequence[str]:
        """As `World`."""
        return (message,)

    def broadcast(self, message: str) -> str:
        """As `World`."""
        return message


ALONE = Alone()
