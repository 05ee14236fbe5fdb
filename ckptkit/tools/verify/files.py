"""Verifies files against their digests, several at once, and reports problems instead of stopping at the first.

Guarantees: every file is read once, from end to end, however many checkpoints share it; memory is bounded by `PROVERS`
windows, whatever the files' sizes. Does not know which checkpoint a file belongs to, or whether that was removed
meanwhile; `ckptkit.tools.verify.checkpoint` does. Any thread may call; ``report`` is called from several threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import xxhash

from ckptkit.checkpoint.write import BlockDigests
from ckptkit.core.text import some
from ckptkit.core.worker import Latch
from ckptkit.errors import CorruptCheckpointError
from ckptkit.format.documents import ShardEntry, TensorEntry
from ckptkit.storage import Storage

PROVERS = 16
_WINDOW_BYTES = 16 << 20  # a storage may need more for full speed; reading many files at once makes up for that


@dataclass(frozen=True)
class Problem:
    """Describes one problem with a file.

    Attributes:
        file: Its key.
        message: What is wrong, in a sentence that names the file.
        tensors: Tensors that may be damaged, as precisely as the digests tell; empty if the file holds none.
        expected: The digest that the file should have; None if the problem is another one, or the digest is unknown.
        found: The digest that it has.
    """

    file: str
    message: str
    tensors: tuple[str, ...] = ()
    expected: str | None = None
    found: str | None = None


class Stopped(Exception):  # noqa: N818 - no error: somebody wanted it
    """Raised in a file's proof when it is cancelled."""


class FileProver:
    """Verifies files in a thread pool; a context manager.

    Args:
        storage: The run root.
        report: Called with the number of bytes just read, from any of the pool's threads.
    """

    def __init__(self, storage: Storage, report: Callable[[int], None]) -> None:
        self._storage = storage
        self._report = report
        self._window_bytes = min(storage.window_bytes, _WINDOW_BYTES)
        self._pool = ThreadPoolExecutor(PROVERS, thread_name_prefix="ckptkit-prove")
        self._lock = threading.Lock()
        self._known: dict[tuple[str, int, str], Future[Problem | None]] = {}
        self._stop = Latch()

    def __enter__(self) -> FileProver:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.open()  # after an error or Ctrl-C, the rest is not needed
        self._pool.shutdown(cancel_futures=True)

    @property
    def files(self) -> int:
        """Number of files requested."""
        with self._lock:
            return len(self._known)

    def prove(self, shard: ShardEntry, listed_bytes: int | None) -> Future[Problem | None]:
        """Start to verify ``shard``; the result is its problem or None, or a StorageError if it could not be read.

        Args:
            shard: What it should be.
            listed_bytes: Its size in a listing; None if the listing did not show it.
        """
        with self._lock:
            key = (shard.key, shard.size_bytes, shard.digest)
            if key not in self._known:
                self._known[key] = self._pool.submit(self._prove, shard, listed_bytes)
            return self._known[key]

    def _prove(self, shard: ShardEntry, listed_bytes: int | None) -> Problem | None:
        # A second time if there is a problem, as `ckptkit.checkpoint.commit.reread_if_corrupt` does.
        return self._examine(shard, listed_bytes) and self._examine(shard, listed_bytes)

    def _examine(self, shard: ShardEntry, listed_bytes: int | None) -> Problem | None:
        names = tuple(one.name for one in shard.tensors)
        if listed_bytes not in (None, shard.size_bytes):
            return Problem(
                shard.key, f"{shard.key} has {listed_bytes} bytes, expected {shard.size_bytes}{_holding(names)}", names
            )
        hasher = xxhash.xxh3_128()
        blocks = BlockDigests(shard.blocks.size_bytes) if shard.blocks is not None else None
        try:
            for data in self._pieces(shard):
                hasher.update(data)
                if blocks is not None:
                    blocks.update(data)
        except FileNotFoundError:
            return Problem(shard.key, f"{shard.key} is missing{_holding(names)}", names)
        except EOFError as error:
            return Problem(shard.key, f"{shard.key} {error}{_holding(names)}", names)
        except CorruptCheckpointError as error:  # the disk cannot read it
            return Problem(shard.key, f"{error}{_holding(names)}", names)
        found = hasher.hexdigest()
        wrong = _wrong_blocks(shard, blocks)
        if found == shard.digest and not wrong:
            return None
        where = tuple(one.name for one in shard.tensors if _lies_in(one, shard, wrong)) if wrong else names
        if found == shard.digest:
            message = f"{shard.key} matches its digest, but not the digests of its blocks{_holding(where)}"
        else:
            message = f"{shard.key} has the digest {found}, expected {shard.digest}{_holding(where)}"
        return Problem(shard.key, message, where, shard.digest, found)

    def _pieces(self, shard: ShardEntry) -> Iterator[memoryview]:
        """Yield the file in order; raise EOFError if it ends too early."""
        window = memoryview(bytearray(min(self._window_bytes, shard.size_bytes)))
        at = 0
        while True:  # reads at least once: this tells whether an empty file exists
            if self._stop.is_open:
                raise Stopped
            part = window[: shard.size_bytes - at]
            count = self._storage.read_into(shard.key, [part], at)
            if count < len(part):
                raise EOFError(f"ends at byte {at + count}, expected {shard.size_bytes}")
            yield part
            at += count
            self._report(count)
            if at == shard.size_bytes:
                return


def _wrong_blocks(shard: ShardEntry, found: BlockDigests | None) -> frozenset[int]:
    """Return the numbers of the blocks whose digests differ."""
    if shard.blocks is None or found is None:
        return frozenset()
    pairs = zip(shard.blocks.digests, found.found().digests, strict=True)
    return frozenset(at for at, (one, other) in enumerate(pairs) if one != other)


def _lies_in(tensor: TensorEntry, shard: ShardEntry, blocks: frozenset[int]) -> bool:
    """Return whether a byte of ``tensor`` lies in one of the ``blocks``."""
    if shard.blocks is None or not tensor.size_bytes:
        return False
    size = shard.blocks.size_bytes
    last = (tensor.offset_bytes + tensor.size_bytes - 1) // size
    return any(tensor.offset_bytes // size <= one <= last for one in blocks)


def _holding(names: tuple[str, ...]) -> str:
    return f" (in it: {some(names)})" if names else ""
