"""What the writer gets of a capture: files that it can read while training goes on.

Guarantees nothing by itself; `ckptkit.snapshot.Window` is one. Writer thread only.
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
    """A capture on its way to the storage."""

    @property
    def progress(self) -> Progress:
        """Of the capture."""
        ...

    @property
    def state(self) -> Mapping[str, JsonValue]:
        """Of the capture."""
        ...

    @property
    def shards(self) -> tuple[Shard, ...]:
        """The files."""
        ...

    @property
    def cost(self) -> SaveCost:
        """Where to add up what the writer spends."""
        ...

    @property
    def by_slices(self) -> bool:
        """Whether a file whose memory belongs to training can be read only once."""
        ...

    def open_shard(self, number: int, *, last: bool = True) -> ByteStream:
        """Read file ``number`` from its start; ``last`` if it is not read again."""
        ...

    def release(self) -> None:
        """The save has ended, well or not."""
        ...

    def advance(self, micro_steps_left: int) -> None:
        """Training thread: give the writer what it may wait for, as far as there is room; does not wait itself."""
        ...
