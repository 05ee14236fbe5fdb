"""Reports what saves cost: time of the training thread and the writer, memory, and bytes.

Every figure is measured. The training thread adds to some fields and the writer to the others, until the save and its
window have ended. Any thread may read them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import timedelta

from ckptkit.core.progress import Progress
from ckptkit.core.text import many, span


@dataclass
class SaveCost:
    """Holds the cost of one save. Seconds are wall time.

    Attributes:
        stall_seconds: Time taken from the training thread: the save call, slices, and the fence.
        fence_seconds: Part of it in the fence, which copies what the writer has not read before an update changes it.
        fence_wait_seconds: Part of that spent waiting for the writer because the buffers were full.
        queue_seconds: Time that the save call waited for the previous save.
        digest_seconds: Time that the writer copied and digested.
        write_seconds: Time that the writer waited for the storage.
        copied_bytes: Copied by the save call.
        fenced_bytes: Copied later: in the background, by the fence, and slice by slice.
        streamed_bytes: Passed to the storage so far.
        in_place_bytes: Read by the writer from live memory.
        buffer_bytes: Memory of all buffers after the save.
        skipped_saves: Saves of the attempt that were due and skipped before this one began.
    """

    stall_seconds: float = 0.0
    fence_seconds: float = 0.0
    fence_wait_seconds: float = 0.0
    queue_seconds: float = 0.0
    digest_seconds: float = 0.0
    write_seconds: float = 0.0
    copied_bytes: int = 0
    fenced_bytes: int = 0
    streamed_bytes: int = 0
    in_place_bytes: int = 0
    buffer_bytes: int = 0
    skipped_saves: int = 0

    def as_numbers(self) -> dict[str, float | int]:
        """Return the fields by name; time that a clock measured backwards counts as none."""
        return {name: max(0, value) for name, value in asdict(self).items()}


@dataclass(frozen=True)
class SaveReport:
    """Describes a committed save; `CheckpointManager` passes it to ``on_save``.

    Attributes:
        checkpoint: Name of the checkpoint.
        progress: Progress that it stores.
        took: Time from the save call to the commit.
        size_bytes: Bytes written for it; a shared frozen shard counts in the save that wrote it.
        cost: Cost of the save.
    """

    checkpoint: str
    progress: Progress
    took: timedelta
    size_bytes: int
    cost: SaveCost

    @property
    def stall(self) -> timedelta:
        """Time that the save kept training waiting, with the wait for the save before it."""
        return timedelta(seconds=self.cost.stall_seconds)


@dataclass
class SaveTotals:
    """Sums the cost of a training's saves; ``stall_seconds`` is the "stall of saves" of ``ckptkit goodput``."""

    saves: int = 0
    stall_seconds: float = 0.0
    size_bytes: int = 0
    took_seconds: float = 0.0
    buffer_bytes: int = 0

    def add(self, report: SaveReport) -> None:
        self.saves += 1
        self.size_bytes += report.size_bytes
        self.took_seconds += report.took.total_seconds()
        self.buffer_bytes = max(self.buffer_bytes, report.cost.buffer_bytes)

    def __str__(self) -> str:
        if not self.saves:
            return "no save"
        return (
            f"{many(self.saves, 'save')} of {self.size_bytes / self.saves / 2**20:.1f} MiB took "
            f"{self.took_seconds / self.saves:.2f} s each and kept training waiting for "
            f"{span(self.stall_seconds / self.saves)} each, with {self.buffer_bytes / 2**20:.0f} MiB of buffers"
        )
