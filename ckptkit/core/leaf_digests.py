"""Digests the bits of leaves: of each all of them, of large states in several threads.

Guarantees: whoever calls it waits until all are read, so the digests are of one moment if nobody else runs. Any thread.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import xxhash

from ckptkit.core.parallel import each_of
from ckptkit.core.tensors import Array, Leaf, bytes_of

_BLOCKS, _BLOCK_BYTES = 16, 1 << 12
_LANES = 4  # more would compete for the memory's bandwidth
_LANES_FROM_BYTES = 256 << 20  # less is not worth threads


def digest_of_bits(array: Array) -> str:
    """Return the xxh3_128 of the bits of a C-contiguous ``array``."""
    return xxhash.xxh3_128_hexdigest(bytes_of(array).data)


def sampled(size_bytes: int) -> list[tuple[int, int]]:
    """Return the ranges of bytes that `sample_of` reads: all up to 64 KiB, of more 16 blocks, the ends among them."""
    if size_bytes <= _BLOCKS * _BLOCK_BYTES:
        return [(0, size_bytes)]
    last = size_bytes - _BLOCK_BYTES
    starts = [last * block // (_BLOCKS - 1) for block in range(_BLOCKS)]
    return [(start, start + _BLOCK_BYTES) for start in starts]


def sample_of(array: Array) -> str:
    """Return the xxh3_128 of a sample of the bits of a C-contiguous ``array``, whatever its size in the same time."""
    data, hasher = bytes_of(array).data, xxhash.xxh3_128()
    for start, stop in sampled(array.nbytes):
        hasher.update(data[start:stop])
    return hasher.hexdigest()


def digests_of(leaves: Sequence[Leaf]) -> dict[str, str]:
    """Return the digest of each of ``leaves``, by name."""
    in_lanes = sum(leaf.size_bytes for leaf in leaves) >= _LANES_FROM_BYTES
    in_lanes = in_lanes and not any(callable(leaf.source) for leaf in leaves)  # these are for one thread
    threads = min(_LANES, os.cpu_count() or 1) if in_lanes else 1
    digests = each_of(leaves, lambda leaf: digest_of_bits(leaf.array), threads=threads, few=1)
    return {leaf.name: digest for leaf, digest in zip(leaves, digests, strict=True)}
