"""Writes the frozen shards that an attempt's checkpoints share: weights that the user declared not to change.

Guarantees: a frozen shard that a checkpoint refers to was written completely and durably by the same attempt. A
declared leaf that does change is detected at the next save, before a checkpoint refers to it. Threads: the writer
thread only; any thread may read `FrozenShards.settled` and ``demoted`` while no save is running.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ckptkit.checkpoint.digesting import BlockDigests, DigestingStream, LeafDigests
from ckptkit.checkpoint.staged import Staged
from ckptkit.core.text import some
from ckptkit.errors import StateMismatchError, StorageError
from ckptkit.format.documents import AttemptDocument, Blocks
from ckptkit.format.layout import frozen_folder
from ckptkit.storage import Storage

_FROZEN = (
    "training changed parameters that are declared frozen: {}. This save was abandoned; later saves store them in "
    "every checkpoint. Remove them from frozen=."
)
_IN_PLACE = (
    "{} changed before an update, while a save read it in place. This save was abandoned; later saves of this process "
    "copy it at once. Normal if the forward pass writes to it; if a loop or a callback does, call manager.fence() first"
)


class FrozenShards:
    """Writes the shards of one attempt below ``frozen/``, and remembers them."""

    def __init__(self, storage: Storage, attempt: AttemptDocument, check_fence: Callable[[], object]) -> None:
        self._storage = storage
        self._check_fence = check_fence
        self._folder = frozen_folder(attempt.attempt)
        self._written: dict[tuple[str, ...], str] = {}
        self._blocks: dict[str, Blocks] = {}
        self._digests: dict[str, str] = {}
        self.demoted: frozenset[str] = frozenset()
        self.written_bytes = 0

    @property
    def settled(self) -> frozenset[str]:
        return frozenset(name for names in self._written for name in names)

    def share(self, staged: Staged, number: int) -> tuple[str, str, Blocks | None]:
        """Write shard ``number`` unless this attempt already has; return its key, its digest and its block digests."""
        shard = staged.shards[number]
        names = tuple(leaf.name for leaf in shard.leaves)
        known = self._written.get(names)
        if known is not None:
            self._check(staged, number)
            if self._is_there(known):
                return self._key(known), known, self._blocks.get(known)
            del self._written[names]
            if staged.by_slices:
                raise StorageError(
                    f"{self._key(known)}, which this process wrote, is missing: a part of the run was deleted. This "
                    "save was abandoned; the next one writes the file again."
                )
        digest = self._write(staged, number)
        self._written[names] = digest
        self.written_bytes += shard.size_bytes
        return self._key(digest), digest, self._blocks.get(digest)

    def _write(self, staged: Staged, number: int) -> str:
        shard = staged.shards[number]
        before, written = LeafDigests(shard), LeafDigests(shard)
        digest = DigestingStream(staged.open_shard(number, last=False), leaves=before).exhaust(shard.size_bytes)
        if self._is_there(digest):
            # A failed write may have left a complete file that is not durable; no commit refers to it. Check the fence
            # first: if the run was removed and begun anew under this number, the shard belongs to the other job.
            self._check_fence()
            self._storage.delete([self._key(digest)])
        blocks = BlockDigests() if shard.has_blocks else None
        stream = DigestingStream(staged.open_shard(number), leaves=written, blocks=blocks, cost=staged.cost)
        self._storage.write(self._key(digest), stream, shard.size_bytes)
        self.refuse_changed(before.found, written.found, _FROZEN)
        self.refuse_changed(staged.samples, written.samples, _FROZEN)
        self._digests.update(written.found)
        if blocks is not None:
            self._blocks[digest] = blocks.found()
        return digest

    def _check(self, staged: Staged, number: int) -> None:
        shard = staged.shards[number]
        now = LeafDigests(shard)
        DigestingStream(staged.open_shard(number), leaves=now).exhaust(shard.size_bytes)
        self.refuse_changed(self._digests, now.found, _FROZEN)

    def _is_there(self, digest: str) -> bool:
        return f"{digest}.safetensors" in self._storage.list(self._folder).files

    def _key(self, digest: str) -> str:
        return f"{self._folder}/{digest}.safetensors"

    def refuse_changed(self, before: Mapping[str, str], now: Mapping[str, str], words: str = _IN_PLACE) -> None:
        """Compare the digests of leaves that were to stay; those that are not in ``before`` are not compared."""
        changed = [name for name, digest in now.items() if before.get(name, digest) != digest]
        if changed:
            self.demoted |= set(changed)
            raise StateMismatchError(words.format(some(changed)))
