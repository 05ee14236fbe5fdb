"""Receipts: how rank 0 learns from one listing that every rank's part of a checkpoint is durable.

A rank writes its shards, then its own document, then an empty object in ``receipts/`` whose *name* says which save it
belongs to and the digest and size of that document. Rank 0 needs no request per rank: it lists the receipts until all
are there, and then compares one walk of the folder with what they say.

Guarantees: what `Receipts.collect` returns has one receipt per rank, of the save that was asked for, and every rank's
files lie there with the sizes that the rank wrote. It waits for the storage and never for a collective; once no
receipt has come for as long as the patience, or somebody said that a part will not come, it gives the save up.
Writer thread, but for `Receipts.give_up` and `Receipts.hurry`, which any thread may call.
"""

from __future__ import annotations

import io
import itertools
import re
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta

from ckptkit.errors import SaveFailedError
from ckptkit.format.documents import FileEntry
from ckptkit.format.layout import CheckpointName
from ckptkit.storage import Storage

_NAME = re.compile(r"([0-9]{5})-([0-9]{10,16})-([0-9a-f]{32})-([0-9]{1,10})-([0-9]{1,19})-([0-9]{1,19})")
_FIRST_PAUSE = timedelta(milliseconds=20)
_LONGEST_PAUSE = timedelta(seconds=1)
_FAREWELL = timedelta(seconds=10)


@dataclass(frozen=True)
class Receipt:
    """What one rank wrote.

    Attributes:
        rank: Which.
        save_number: Of the save in its attempt.
        file: The rank's document.
        own_bytes: Of its shards in the checkpoint's folder.
        all_bytes: Of all its shards, shared frozen ones included.
    """

    rank: int
    save_number: int
    file: FileEntry
    own_bytes: int
    all_bytes: int

    @property
    def file_name(self) -> str:
        """Its name in the folder of receipts."""
        return (
            f"{self.rank:05d}-{self.save_number:010d}-{self.file.digest}-{self.file.size_bytes}"
            f"-{self.own_bytes}-{self.all_bytes}"
        )

    @classmethod
    def parse(cls, file_name: str, checkpoint: CheckpointName) -> Receipt | None:
        """The receipt that a file name in the folder of ``checkpoint`` is, or None."""
        match = _NAME.fullmatch(file_name)
        if match is None:
            return None
        rank, number, digest, size_bytes, own_bytes, all_bytes = match.groups()
        entry = FileEntry(key=checkpoint.rank_key(int(rank)), size_bytes=int(size_bytes), digest=digest)
        receipt = cls(int(rank), int(number), entry, int(own_bytes), int(all_bytes))
        return receipt if receipt.file_name == file_name else None


def post(storage: Storage, checkpoint: CheckpointName, receipt: Receipt) -> None:
    """Say that a rank's part is durable; the last thing that the rank writes.

    Raises:
        StorageError: If it could not be written; then the part is as good as lost.
    """
    storage.write(f"{checkpoint.receipts_folder}/{receipt.file_name}", io.BytesIO(b""), 0)


def post_failure(storage: Storage, checkpoint: CheckpointName, rank: int, save_number: int) -> None:
    """Say that a rank's part will not come, so that nobody waits for it.

    Raises:
        StorageError: If that could not be written either; then only patience ends the wait.
    """
    storage.write(f"{checkpoint.receipts_folder}/{_failure_name(rank, save_number)}", io.BytesIO(b""), 0)


def _failure_name(rank: int, save_number: int) -> str:
    return f"{rank:05d}-{save_number:010d}-failed"


class Receipts:
    """Rank 0's waiting for the others.

    Args:
        storage: The run root.
        ranks: How many there are, rank 0 included.
        patience: How long no receipt may come before the save is given up.
        monotonic: Gives seconds.
        pause: Waits so many seconds, or less if it is given up meanwhile.
    """

    def __init__(
        self,
        storage: Storage,
        ranks: int,
        patience: timedelta,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        pause: Callable[[float], object] | None = None,
    ) -> None:
        self._storage = storage
        self._ranks = ranks
        self._patience = patience
        self._monotonic = monotonic
        self._given_up: dict[int, str] = {}
        self._woken = threading.Event()
        self._pause = pause if pause is not None else self._woken.wait

    def give_up(self, save_number: int, why: str) -> None:
        """Wait for the save ``save_number`` no longer: one of its parts will not come."""
        self._given_up.setdefault(save_number, why)
        self._woken.set()

    def hurry(self) -> None:
        """Wait no longer than some seconds: this rank leaves because of an error, and others may have died of it."""
        self._patience = min(self._patience, _FAREWELL)
        self._woken.set()

    def collect(self, checkpoint: CheckpointName, own: Receipt, check: Callable[[], None]) -> tuple[Receipt, ...]:
        """Wait for the receipts of the save that ``own`` is rank 0's part of; by rank.

        Args:
            checkpoint: What the save is to become.
            own: For rank 0's part.
            check: Raises if there is nothing to wait for any more, such as where another process took the run over,
                since the other ranks may have stopped for that; called now and then in a long wait.

        Raises:
            SaveFailedError: If a part is missing for too long, was given up, or is not what its receipt says.
            StorageError: If the storage failed.
        """
        found = self._all_of(checkpoint, own, check)
        self._check(checkpoint, found)
        return found

    def _all_of(self, checkpoint: CheckpointName, own: Receipt, check: Callable[[], None]) -> tuple[Receipt, ...]:
        number = own.save_number
        found: dict[int, Receipt] = {own.rank: own}
        since = self._monotonic()
        pause = _FIRST_PAUSE
        missing = [rank for rank in range(self._ranks) if rank not in found]
        while True:
            # Few that are missing are one page where all would be many.
            files = self._storage.list(checkpoint.receipts_folder, _common_prefix(missing)).files
            now = self._monotonic()
            more = {one.rank: one for file in files if (one := Receipt.parse(file, checkpoint)) is not None}
            more = {rank: one for rank, one in more.items() if one.save_number == number and rank < self._ranks}
            if more.keys() - found.keys():
                found.update({rank: one for rank, one in more.items() if rank not in found})
                since, pause = now, _FIRST_PAUSE
            missing = [rank for rank in range(self._ranks) if rank not in found]
            if not missing:
                return tuple(found[rank] for rank in range(self._ranks))
            failed = [rank for rank in missing if _failure_name(rank, number) in files]
            if failed:
                self.give_up(number, f"{_ranks_in_words(failed)} could not write a part (see the log there)")
            if number in self._given_up:
                raise SaveFailedError(
                    f"{self._given_up[number]}; the save {checkpoint} of {self._ranks} ranks is given up, and nothing "
                    "of it is committed"
                )
            if now - since >= self._patience.total_seconds():
                raise SaveFailedError(
                    f"{_ranks_in_words(missing)} of {self._ranks} did not write their part of {checkpoint}, and for "
                    f"{self._patience} no other part came either. Nothing of it is committed. See in the logs of those "
                    "ranks whether they are alive; if they are and write slowly, give them longer (rank_patience=)"
                )
            if pause == _LONGEST_PAUSE:
                check()
            self._woken.clear()
            self._pause(pause.total_seconds())
            pause = min(_LONGEST_PAUSE, pause * 1.5)

    def _check(self, checkpoint: CheckpointName, receipts: Collection[Receipt]) -> None:
        """Compare what lies in the folder with the receipts: one walk, which is pages and not ranks."""
        sizes = self._storage.walk(f"{checkpoint.folder}/")
        shards: dict[str, int] = {}
        for key, size_bytes in sizes.items():
            folder = key.rpartition("/")[0]
            shards[folder] = shards.get(folder, 0) + size_bytes
        for one in receipts:
            there = shards.get(checkpoint.rank_folder(one.rank), 0), sizes.get(one.file.key)
            if there != (one.own_bytes, one.file.size_bytes):
                raise SaveFailedError(
                    f"rank {one.rank} wrote {one.own_bytes} bytes of shards and a document of {one.file.size_bytes} "
                    f"bytes for {checkpoint}, but {there[0]} and {there[1]} bytes lie at {self._storage.url}. Nothing "
                    "of it is committed. Do all ranks write to one and the same storage?"
                )


def _common_prefix(ranks: Sequence[int]) -> str:
    """What the receipts of all ``ranks``, in order, begin with."""
    ends = [f"{rank:05d}-" for rank in (*ranks[:1], *ranks[-1:])]
    alike = itertools.takewhile(lambda letters: len(set(letters)) == 1, zip(*ends, strict=True))
    return "".join(letters[0] for letters in alike)


def _ranks_in_words(ranks: Collection[int]) -> str:
    shown = ", ".join(map(str, sorted(ranks)[:8]))
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}{', ...' if len(ranks) > 8 else ''}"
