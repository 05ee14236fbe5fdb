"""The shards that an attempt's checkpoints share: weights that the user declared never to change.

Guarantees: what a checkpoint refers to was written whole and durably by this very attempt; a declared leaf that
changes after all is noticed at the next save, before anything refers to it. Writer thread only, but for
`FrozenShards.settled` and ``demoted``, which anybody may read while no save is under way.
"""

from __future__ import annotations

from collections.abc import Sequence

from ckptkit.errors import StorageError
from ckptkit.manifest import AttemptDocument
from ckptkit.run.names import frozen_folder
from ckptkit.run.shard_stream import ShardStream, leaf_digests
from ckptkit.run.staged import Staged
from ckptkit.shards import Shard
from ckptkit.storage import ByteStream, Storage


class FrozenShards:
    """What one attempt has written below ``frozen/``.

    Args:
        storage: The run root.
        attempt: The attempt that writes.

    Attributes:
        demoted: Names of leaves that were declared frozen and changed.
        written_bytes: Of all that was written there.
    """

    def __init__(self, storage: Storage, attempt: AttemptDocument) -> None:
        self._storage = storage
        self._folder = frozen_folder(attempt.attempt)
        self._written: dict[tuple[str, ...], str] = {}
        self._digests: dict[str, str] = {}
        self.demoted: frozenset[str] = frozenset()
        self.written_bytes = 0

    @property
    def settled(self) -> frozenset[str]:
        """Names of the leaves that need not be written again."""
        return frozenset(name for names in self._written for name in names)

    def share(self, staged: Staged, number: int) -> tuple[str, str]:
        """Write shard ``number`` unless this attempt has it already; returns its key and its digest.

        Raises:
            ValueError: If a leaf of it changed since it was written, or while it was; from the next save on that leaf
                is demoted.
            StorageError: If it could not be written.
        """
        shard = staged.shards[number]
        names = tuple(leaf.name for leaf in shard.leaves)
        known = self._written.get(names)
        if known is not None:
            self._check(shard, staged.open_shard(number))
            if self._is_there(known):
                return self._key(known), known
            del self._written[names]
            if staged.by_slices:
                raise StorageError(
                    f"{self._key(known)} is gone, which this process wrote: somebody deleted a part of the run. This "
                    "save is given up; the next one writes it again."
                )
        return self._write(staged, number, names)

    def _write(self, staged: Staged, number: int, names: tuple[str, ...]) -> tuple[str, str]:
        shard = staged.shards[number]
        whole = ShardStream(staged.open_shard(number, last=False))
        digests = leaf_digests(shard, whole)
        digest = whole.digest()
        if self._is_there(digest):
            # What a failed write left may be whole and yet not durable; no commit refers to it.
            self._storage.delete([self._key(digest)])
        stream = ShardStream(staged.open_shard(number))
        self._storage.write(self._key(digest), stream, shard.size_bytes)
        if stream.digest() != digest:
            self._demote(names)
        self._written[names] = digest
        self._digests.update(digests)
        self.written_bytes += shard.size_bytes
        return self._key(digest), digest

    def _is_there(self, digest: str) -> bool:
        return f"{digest}.safetensors" in self._storage.list(self._folder).files

    def _key(self, digest: str) -> str:
        return f"{self._folder}/{digest}.safetensors"

    def _check(self, shard: Shard, stream: ByteStream) -> None:
        digests = leaf_digests(shard, stream)
        changed = [name for name, digest in digests.items() if self._digests[name] != digest]
        if changed:
            self._demote(changed)

    def _demote(self, names: Sequence[str]) -> None:
        self.demoted |= set(names)
        raise ValueError(
            f"declared frozen, but changed by training: {', '.join(names)}. This save is given up; from the "
            "next one on they are stored with every checkpoint. Take them out of frozen=."
        )
