"""What a save cost, and whom: the training thread, memory, the writer.

Guarantees: every figure is measured, none is estimated. The training thread adds to some fields and the writer to the
others, so any thread may read them, and sees them grow until the save and its window have ended.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import timedelta

from ckptkit.core.progress import Progress


@dataclass
class SaveCost:
    """Of one save. Seconds are wall time.

    Attributes:
        stall_seconds: Taken from the training thread: the save call, slices, and the fence.
        fence_seconds: Of that, in the fence, which copies what the writer has not read before an update changes it.
        fence_wait_seconds: Of that, waiting for the writer because the buffers were full.
        queue_seconds: Waiting of the save call for the save before it.
        digest_seconds: Of the writer, copying and digesting.
        write_seconds: Of the writer, waiting for the storage.
        copied_bytes: Copied by the save call.
        fenced_bytes: Copied later: by the fence, and slice by slice.
        streamed_bytes: Handed to the storage so far.
        in_place_bytes: Read by the writer from live memory.
        buffer_bytes: Memory of all buffers after the save.
        skipped_saves: Saves that were due while this one was written, and not taken.
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
        """Its fields by name."""
        return asdict(self)


@dataclass(frozen=True)
class SaveReport:
    """A save that has been committed, as `CheckpointManager` tells it to ``on_save``.

    Attributes:
        checkpoint: Its name.
        progress: What it is a checkpoint of.
        took: From the save call to the commit.
        size_bytes: Written for it; shared frozen shards count where they were written.
        cost: What it cost.
    """

    checkpoint: str
    progress: Progress
    took: timedelta
    size_bytes: int
    cost: SaveCost

    @property
    def stall(self) -> timedelta:
        """How long it kept training from going on."""
        return timedelta(seconds=self.cost.stall_seconds)


@dataclass
class SaveTotals:
    """What the saves of a training cost in all.

    Attributes:
        saves: Committed and reported.
        stall_seconds: Of the training thread.
        longest_stall_seconds: Of one save.
        size_bytes: Written.
        took_seconds: From the save calls to the commits.
        buffer_bytes: Most memory that the buffers ever took.
    """

    saves: int = 0
    stall_seconds: float = 0.0
    longest_stall_seconds: float = 0.0
    size_bytes: int = 0
    took_seconds: float = 0.0
    buffer_bytes: int = 0

    def add(self, report: SaveReport) -> None:
        """Count ``report``."""
        self.saves += 1
        self.stall_seconds += report.cost.stall_seconds
        self.longest_stall_seconds = max(self.longest_stall_seconds, report.cost.stall_seconds)
        self.size_bytes += report.size_bytes
        self.took_seconds += report.took.total_seconds()
        self.buffer_bytes = max(self.buffer_bytes, report.cost.buffer_bytes)

    def __str__(self) -> str:
        if not self.saves:
            return "no save"
        return (
            f"{self.saves} saves of {self.size_bytes / self.saves / 2**20:.1f} MiB took "
            f"{self.took_seconds / self.saves:.2f} s each and kept training waiting for "
            f"{self.stall_seconds / self.saves * 1e3:.1f} ms each (at most {self.longest_stall_seconds * 1e3:.1f} ms), "
            f"with {self.buffer_bytes / 2**20:.0f} MiB of buffers"
        )
