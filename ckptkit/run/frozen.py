"""The shards that an attempt's checkpoints share: weights that the user declared never to change.

Guarantees: what a checkpoint refers to was written whole and durably by this very attempt; a declared leaf that
changes after all is noticed at the next save, before anything refers to it. Writer thread only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import xxhash

from ckptkit.manifest import AttemptDocument, digest_of
from ckptkit.run.names import frozen_folder
from ckptkit.run.shard_stream import ShardStream
from ckptkit.storage import Storage
from ckptkit.tensors import Leaf, Shard


class FrozenShards:
    """What one attempt has written below ``frozen/``.

    Args:
        storage: The run root.
        attempt: The attempt that writes.
    """

    def __init__(self, storage: Storage, attempt: AttemptDocument) -> None:
        self._storage = storage
        self._folder = frozen_folder(attempt.attempt)
        self._written: set[str] = set()
        self._digests: dict[str, str] = {}
        self._demoted: set[str] = set()

    def settle(self, leaves: Sequence[Leaf]) -> tuple[Leaf, ...]:
        """``leaves``, those that were demoted no longer frozen.

        Raises:
            ValueError: If a frozen leaf changed since the save before; from the next save on it is demoted.
        """
        changed = []
        for leaf in leaves:
            if leaf.lifetime == "frozen" and leaf.name not in self._demoted:
                digest = digest_of(leaf.memory())
                if self._digests.setdefault(leaf.name, digest) != digest:
                    changed.append(leaf.name)
        self._demoted.update(changed)
        if changed:
            raise ValueError(
                f"declared frozen, but changed by training: {', '.join(changed)}. This save is given up; from the "
                "next one on they are stored with every checkpoint. Take them out of frozen=."
            )
        return tuple(replace(leaf, lifetime="micro") if leaf.name in self._demoted else leaf for leaf in leaves)

    def share(self, shard: Shard) -> tuple[str, str]:
        """Write ``shard`` unless this attempt has it already; returns its key and its digest.

        Raises:
            StorageError: If it could not be written.
            ValueError: If it changed meanwhile.
        """
        hasher = xxhash.xxh3_128()
        for chunk in shard.chunks():
            hasher.update(chunk)
        file = f"{hasher.hexdigest()}.safetensors"
        key = f"{self._folder}/{file}"
        present = file in self._storage.list(self._folder).files
        if present and key not in self._written:
            # What a failed write left may be whole and yet not durable; no commit refers to it.
            self._storage.delete([key])
            present = False
        if not present:
            stream = ShardStream(shard)
            self._storage.write(key, stream, shard.size_bytes)
            if stream.digest() != hasher.hexdigest():
                names = ", ".join(leaf.name for leaf in shard.leaves)
                raise ValueError(
                    f"declared frozen, but changed by training while they were saved: one or more of {names[:1000]}."
                    " This save is given up. Take them out of frozen=."
                )
            self._written.add(key)
        return key, hasher.hexdigest()
