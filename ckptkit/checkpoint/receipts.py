"""Writes and collects receipts, by which rank 0 learns from a listing that every rank's part is durable.

A receipt is an empty file, written last, whose *name* states the save, and the digest and size of the rank's document.
`Receipts.collect` returns one per rank, all of one save, and every rank's files have the sizes that it wrote. It waits
for the storage, never for a collective. Beside them lie certificates, empty files too: each names a checkpoint from
which the training up to this one was done again, with equal bits.
"""

from __future__ import annotations

import io
import os
import re
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import timedelta

from ckptkit.checkpoint.commit import read_commit
from ckptkit.core.waiting import Patience
from ckptkit.core.worker import Latch
from ckptkit.errors import CheckpointNotFoundError, SaveFailedError
from ckptkit.format.documents import Commit, FileEntry, RankManifest
from ckptkit.format.layout import CheckpointName
from ckptkit.storage import Storage

_NAME = re.compile(r"([0-9]{5})-([0-9]{10,16})-([0-9a-f]{32})-([0-9]{1,10})-([0-9]{1,19})-([0-9]{1,19})")
_CERTIFIED = "certified-from-"
_PREFIX = f"receipts/{_CERTIFIED}"
_FIRST_PAUSE = timedelta(milliseconds=20)
_LONGEST_PAUSE = timedelta(seconds=1)


@dataclass(frozen=True)
class Receipt:
    rank: int
    save_number: int
    file: FileEntry
    own_bytes: int
    all_bytes: int

    @property
    def file_name(self) -> str:
        return (
            f"{self.rank:05d}-{self.save_number:010d}-{self.file.digest}-{self.file.size_bytes}"
            f"-{self.own_bytes}-{self.all_bytes}"
        )

    @classmethod
    def parse(cls, file_name: str, checkpoint: CheckpointName) -> Receipt | None:
        match = _NAME.fullmatch(file_name)
        if match is None:
            return None
        rank, number, digest, size_bytes, own_bytes, all_bytes = match.groups()
        entry = FileEntry(key=checkpoint.rank_key(int(rank)), size_bytes=int(size_bytes), digest=digest)
        receipt = cls(int(rank), int(number), entry, int(own_bytes), int(all_bytes))
        return receipt if receipt.file_name == file_name else None


def receipt_of(checkpoint: CheckpointName, document: RankManifest, file: FileEntry) -> Receipt:
    """Return the receipt for the part that ``document``, stored as ``file``, describes."""
    own = checkpoint.rank_folder(document.rank)
    return Receipt(
        rank=document.rank,
        save_number=document.save_number,
        file=file,
        own_bytes=sum(shard.size_bytes for shard in document.shards if shard.key.startswith(f"{own}/")),
        all_bytes=sum(shard.size_bytes for shard in document.shards),
    )


def post(storage: Storage, checkpoint: CheckpointName, receipt: Receipt) -> None:
    """Report that a rank's part is durable; the rank writes this last."""
    storage.write(f"{checkpoint.receipts_folder}/{receipt.file_name}", io.BytesIO(b""), 0)


def post_failure(storage: Storage, checkpoint: CheckpointName, rank: int, save_number: int) -> None:
    storage.write(failure_key(checkpoint, rank, save_number), io.BytesIO(b""), 0)


def failure_key(checkpoint: CheckpointName, rank: int, save_number: int) -> str:
    return f"{checkpoint.receipts_folder}/{rank:05d}-{save_number:010d}-failed"


def post_certificate(storage: Storage, checkpoint: CheckpointName, begin: CheckpointName) -> None:
    """Store that the training from ``begin`` to ``checkpoint`` was done again with equal bits."""
    key = f"{checkpoint.receipts_folder}/{_CERTIFIED}{begin}"
    storage.write(key, io.BytesIO(b""), 0)
    if not isinstance(read_commit(storage, checkpoint), Commit):  # last: whoever removes COMMIT first, then lists
        storage.delete([key])
        raise CheckpointNotFoundError(f"{checkpoint} is no longer committed at {storage.url}: it is not certified")


def certified_from(files: Iterable[str]) -> tuple[str, ...]:
    names = (CheckpointName.parse(file.removeprefix(_PREFIX)) for file in files if file.startswith(_PREFIX))
    return tuple(map(str, sorted(name for name in names if name is not None)))


def is_certified(storage: Storage, checkpoint: CheckpointName) -> bool:
    files = storage.list(checkpoint.receipts_folder, _CERTIFIED).files
    return bool(certified_from(f"receipts/{file}" for file in files))


class Receipts:
    def __init__(
        self,
        storage: Storage,
        ranks: int,
        patience: Patience,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        pause: Callable[[float], object] | None = None,
    ) -> None:
        self._storage, self._ranks, self._patience, self._monotonic = storage, ranks, patience, monotonic
        self._given_up: dict[int, str] = {}
        self._woken = Latch()
        self._pause = pause

    def give_up(self, save_number: int, why: str) -> None:
        """Stop waiting for the save ``save_number``: one of its parts will not arrive."""
        self._given_up.setdefault(save_number, why)
        self._woken.open()

    def collect(
        self, checkpoint: CheckpointName, own: Receipt, check: Callable[[], None], *, least_seconds: float = 0.0
    ) -> tuple[Receipt, ...]:
        """Return the receipts of all ranks; raise if none arrives for so long as patience and ``least_seconds`` say."""
        number = own.save_number
        receipts: dict[int, Receipt] = {own.rank: own}
        since = self._monotonic()
        pause = _FIRST_PAUSE
        missing = [rank for rank in range(self._ranks) if rank not in receipts]
        while True:
            # A few missing receipts fit on one page; all receipts would be many pages.
            ends = [f"{rank:05d}-" for rank in (*missing[:1], *missing[-1:])]
            prefix = os.path.commonprefix(ends)  # noqa: RUF071 - these are no paths
            files = self._storage.list(checkpoint.receipts_folder, prefix).files
            now = self._monotonic()
            parsed = [receipt for file in files if (receipt := Receipt.parse(file, checkpoint)) is not None]
            new = {receipt.rank: receipt for receipt in parsed if receipt.save_number == number}
            if any(rank in new for rank in missing):
                receipts = {**new, **receipts}
                since, pause = now, _FIRST_PAUSE
            missing = [rank for rank in range(self._ranks) if rank not in receipts]
            if not missing:
                self._check(checkpoint, receipts.values())
                return tuple(receipts[rank] for rank in range(self._ranks))
            failed = [rank for rank in missing if failure_key(checkpoint, rank, number).rpartition("/")[2] in files]
            if failed:
                self.give_up(number, f"{_ranks_in_words(failed)} could not write a part (see the log there)")
            if number in self._given_up:
                raise SaveFailedError(
                    f"{self._given_up[number]}; the save of {checkpoint} by {self._ranks} ranks committed nothing"
                )
            patience = self._patience.seconds(least_seconds)
            if now - since >= patience:
                raise SaveFailedError(
                    f"{_ranks_in_words(missing)} of {self._ranks} did not write their part of {checkpoint}, and no "
                    f"other part arrived for {timedelta(seconds=patience)}. Nothing was committed. Check the logs of "
                    "those ranks; if the ranks are alive but slow, increase Ranks(patience=...)"
                )
            if pause == _LONGEST_PAUSE:
                check()
            self._woken = Latch()
            (self._pause or self._woken.wait)(pause.total_seconds())
            pause = min(_LONGEST_PAUSE, pause * 1.5)

    def _check(self, checkpoint: CheckpointName, receipts: Collection[Receipt]) -> None:
        """Compare the files in the folder with the receipts in one walk: a request per page, not per rank."""
        sizes = self._storage.walk(f"{checkpoint.folder}/")
        shards: dict[str, int] = {}
        for key, size_bytes in sizes.items():
            folder = key.rpartition("/")[0]
            shards[folder] = shards.get(folder, 0) + size_bytes
        for receipt in receipts:
            there = shards.get(checkpoint.rank_folder(receipt.rank), 0), sizes.get(receipt.file.key)
            if there != (receipt.own_bytes, receipt.file.size_bytes):
                raise SaveFailedError(
                    f"rank {receipt.rank} wrote {receipt.own_bytes} bytes of shards and a document of "
                    f"{receipt.file.size_bytes} bytes for {checkpoint}, but {self._storage.url} has {there[0]} and "
                    f"{there[1]} bytes. Nothing was committed. Check that all ranks write to the same storage"
                )


def _ranks_in_words(ranks: Collection[int]) -> str:
    shown = ", ".join(map(str, sorted(ranks)[:8]))
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}{', ...' if len(ranks) > 8 else ''}"
