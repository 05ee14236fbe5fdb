"""Defines what the writer gets from a capture: files that it can read while training goes on.

Guarantees nothing by itself; `ckptkit.snapshot.Window` implements it. Threads: the writer thread only, except for
`Staged.advance`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from pydantic import JsonValue

from ckptkit.core.progress import Progress
from ckptkit.core.save_report import SaveCost
from ckptkit.format.shards import Shard
from ckptkit.storage import ByteStream


class Staged(Protocol):
    """Gives the writer access to one capture."""

    @property
    def progress(self) -> Progress:
        """The progress at the capture."""
        ...

    @property
    def state(self) -> Mapping[str, JsonValue]:
        """The state in the capture."""
        ...

    @property
    def shards(self) -> tuple[Shard, ...]:
        """The shards to write, one per file."""
        ...

    @property
    def samples(self) -> Mapping[str, str]:
        """What `sample_of` gave at the capture for leaves that may change before they are read, by name."""
        ...

    @property
    def cost(self) -> SaveCost:
        """The cost of the save, to which the writer adds its own."""
        ...

    @property
    def by_slices(self) -> bool:
        """Whether a file whose memory belongs to training can be read only once."""
        ...

    def open_shard(self, number: int, *, last: bool = True) -> ByteStream:
        """Read file ``number`` from its start; ``last`` means that it is not read again."""
        ...

    def release(self) -> None:
        """Release the capture: the save has ended, successfully or not."""
        ...

    def advance(self, micro_steps_left: int) -> bool:
        """Give the writer what it may wait for, as far as there is room.

        Returns:
            False, and nothing is given, if a call of it is in progress in this thread, such as below a signal handler.
        """
        ...
