"""Defines how the ranks of a job exchange messages.

The module itself guarantees nothing: see the implementations. Both operations are collectives. Every rank calls them in
the same order, from its training thread only; a missing rank keeps the others waiting until the framework gives up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class World(Protocol):
    """Exchanges messages between ranks; the interface is small because data goes through the storage."""

    @property
    def rank(self) -> int:
        """Rank of this process, from 0."""

    @property
    def size(self) -> int:
        """Number of ranks."""

    def gather(self, message: str) -> Sequence[str]:
        """Return each rank's message, by rank; every rank receives all of them, so keep them short.

        Raises:
            RuntimeError: If the framework notices that a rank is gone.
        """

    def broadcast(self, message: str) -> str:
        """Return rank 0's message, which may be long; the others' arguments are ignored. Raises as `gather` does."""


@dataclass(frozen=True)
class Alone:
    """Is the `World` of a job of one rank."""

    rank: int = 0
    size: int = 1

    def gather(self, message: str) -> Sequence[str]:
        return (message,)

    def broadcast(self, message: str) -> str:
        return message


ALONE = Alone()
