"""Tracks the checkpoints of a copy: their sizes, what is at the target already, and the outcome of each.

Guarantees: every planned checkpoint has one outcome in `Copied`; one that cannot be copied does not prevent the others.
Documents are read again in each step, since those of all checkpoints together may not fit into memory. One thread.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Literal, Protocol

from ckptkit.checkpoint.open import OpenedCheckpoint, open_checkpoint
from ckptkit.checkpoint.transfer import Transfer, files_of
from ckptkit.errors import CheckpointNotFoundError, CorruptCheckpointError
from ckptkit.format.layout import CheckpointName
from ckptkit.run.index import Index
from ckptkit.storage import Storage

CopyOutcome = Literal["copied", "present", "pruned", "corrupt"]


class CopyWatch(Protocol):
    """Receives the progress of a copy, on the thread that copies."""

    def plan(self, checkpoints: int, size_bytes: int) -> None:
        """Receive the total work; may be called again with larger numbers."""
        ...

    def advance(self, size_bytes: int) -> None:
        """Receive the number of bytes just copied, or verified in place."""
        ...

    def end(self, name: str, outcome: CopyOutcome) -> None:
        """Receive the outcome of a checkpoint."""
        ...


class Unwatched:
    """Shows nothing of a copy; a `CopyWatch`."""

    def plan(self, checkpoints: int, size_bytes: int) -> None:
        """Ignore it."""

    def advance(self, size_bytes: int) -> None:
        """Ignore it."""

    def end(self, name: str, outcome: CopyOutcome) -> None:
        """Ignore it."""


@dataclass
class Copied:
    """Records the outcome of a copy; names of checkpoints, oldest first.

    Attributes:
        run_id: Id of the copy.
        checkpoint: The one that was copied alone; None for a whole run.
        copied: Committed at the target by this call.
        present: At the target already, and the same.
        kept: At the target already, and no longer at the source.
        pruned: Removed at the source before they were copied.
        corrupt: Why they could not be copied, by name.
        copied_bytes: Bytes written.
        found_bytes: Bytes that were at the target already, verified.
    """

    run_id: str
    checkpoint: str | None = None
    copied: list[str] = field(default_factory=list)
    present: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    pruned: list[str] = field(default_factory=list)
    corrupt: dict[str, str] = field(default_factory=dict)
    copied_bytes: int = 0
    found_bytes: int = 0


class Inventory:
    """Compares and copies the planned checkpoints.

    Args:
        source: The root to copy from.
        target: The root to copy to.
        copied: Takes the outcomes.
        watch: Receives the progress.

    Attributes:
        waiting: What is still to be copied, oldest first.
    """

    def __init__(self, source: Storage, target: Storage, copied: Copied, watch: CopyWatch) -> None:
        self._source = source
        self._target = target
        self._copied = copied
        self._watch = watch
        self.waiting: list[CheckpointName] = []
        self._seen: set[CheckpointName] = set()
        self._proven: set[str] = set()
        self._sizes: dict[str, int] = {}

    def plan(self, index: Index, names: Collection[CheckpointName]) -> None:
        """Add those of ``names`` that are new."""
        self._index = index
        for name in sorted(set(names) - self._seen):
            self._seen.add(name)
            opened = self._open(name)
            if opened is not None:
                self.waiting.append(name)
                self._sizes.update({file.key: file.size_bytes for file in files_of(opened)})
        ended = len(self._copied.present) + len(self._copied.copied)
        self._watch.plan(ended + len(self.waiting), sum(self._sizes.values()))

    def compare(self) -> None:
        """Compare what is at the target with the source; changes nothing.

        Raises:
            ResumeError: If something differs; names it.
            StorageError: If one of the two storages failed.
        """
        for name, transfer in self._transfers():
            try:
                transfer.compare(self._watch.advance)
            except CheckpointNotFoundError:
                self._end(name, "pruned")
                continue
            finally:
                self._copied.found_bytes += transfer.found_bytes
            if transfer.is_committed:
                self._end(name, "present")

    def carry(self) -> None:
        """Copy the waiting checkpoints, oldest first; call after `compare`.

        Raises:
            ResumeError: As for `compare`.
            StaleAttemptError: If another process wrote to the target meanwhile.
            StorageError: As for `compare`.
        """
        for name, transfer in self._transfers():
            try:
                transfer.compare(self._watch.advance)
                outcome: CopyOutcome = transfer.finish(self._watch.advance)
            except CheckpointNotFoundError:
                self._end(name, "pruned")
            except CorruptCheckpointError as error:
                self._end(name, "corrupt", str(error))
            else:
                self._end(name, outcome)
            finally:
                self._copied.found_bytes += transfer.found_bytes
                self._copied.copied_bytes += transfer.copied_bytes

    def _transfers(self) -> Iterator[tuple[CheckpointName, Transfer]]:
        for name in tuple(self.waiting):
            opened = self._open(name)
            if opened is not None:
                yield name, Transfer(self._source, self._target, opened, self._proven)

    def _open(self, name: CheckpointName) -> OpenedCheckpoint | None:
        """Return the checkpoint's documents, or record its outcome and return None."""
        try:
            return open_checkpoint(self._source, name, self._index.document(name.attempt))
        except CheckpointNotFoundError:
            self._end(name, "pruned")
        except CorruptCheckpointError as error:
            self._end(name, "corrupt", str(error))
        return None

    def _end(self, name: CheckpointName, outcome: CopyOutcome, why: str = "") -> None:
        if name in self.waiting:
            self.waiting.remove(name)
        lists = {"copied": self._copied.copied, "present": self._copied.present, "pruned": self._copied.pruned}
        if outcome == "corrupt":
            self._copied.corrupt[str(name)] = why
        else:
            lists[outcome].append(str(name))
        self._watch.end(str(name), outcome)
