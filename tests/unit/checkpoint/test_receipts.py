"""How rank 0 asks which parts are there."""

from dataclasses import replace
from datetime import timedelta

import pytest
from support.runs.dict_storage import DictStorage

from ckptkit.checkpoint.receipts import (
    Receipt,
    Receipts,
    certified_from,
    is_certified,
    post,
    post_certificate,
    post_failure,
)
from ckptkit.core.waiting import Patience
from ckptkit.errors import CheckpointNotFoundError, SaveFailedError, StaleAttemptError
from ckptkit.format.documents import FileEntry
from ckptkit.format.layout import CheckpointName

NAME = CheckpointName(1, 5, 0)
PATIENCE = timedelta(seconds=60)


class Asked(DictStorage):
    def __init__(self) -> None:
        super().__init__()
        self.prefixes: list[str] = []

    def list(self, folder, prefix=""):
        self.prefixes.append(prefix)
        return super().list(folder, prefix)


class Clock:
    """Its time passes in pauses; ``meanwhile`` is called in each, with their number from 1."""

    def __init__(self, seconds=None, meanwhile=lambda number: None):
        self.now, self.pauses = 0.0, []
        self._seconds, self._meanwhile = seconds, meanwhile

    def pause(self, seconds):
        self.now += seconds if self._seconds is None else self._seconds
        self.pauses.append(seconds)
        assert self.now < 10 * PATIENCE.total_seconds(), "rank 0 waits for ever"
        self._meanwhile(len(self.pauses))


def written(storage: DictStorage, rank: int) -> Receipt:
    """The receipt for a part that lies there."""
    entry = FileEntry(key=NAME.rank_key(rank), size_bytes=2, digest="0" * 32)
    storage.files |= {entry.key: b"{}", f"{NAME.rank_folder(rank)}/state-000.safetensors": b"123"}
    return Receipt(rank, 1, entry, 3, 3)


def arrive(storage: DictStorage, *ranks: int) -> None:
    for rank in ranks:
        post(storage, NAME, written(storage, rank))


def receipts_of(storage, ranks, clock, patience=PATIENCE) -> Receipts:
    return Receipts(storage, ranks, Patience(patience), monotonic=lambda: clock.now, pause=clock.pause)


def collect(receipts, storage, check=lambda: None) -> tuple[Receipt, ...]:
    return receipts.collect(NAME, written(storage, 0), check)


def test_rank_0_asks_only_for_missing_parts():
    rows = [(4, [3], "00003-"), (1300, [1203, 1299], "012"), (1300, [7, 1299], "0"), (12, [10, 11], "0001")]
    for ranks, late, prefix in rows:
        storage = Asked()
        arrive(storage, *set(range(1, ranks)) - set(late))
        clock = Clock(0, lambda _, storage=storage, late=late: arrive(storage, *late))
        assert [one.rank for one in collect(receipts_of(storage, ranks, clock), storage)] == [*range(ranks)]
        assert storage.prefixes[-1] == prefix
    storage = Asked()
    arrive(storage, 1)
    clock = Clock(0, lambda _: post_failure(storage, NAME, 2, 1))
    with pytest.raises(SaveFailedError, match="rank 2 could not write a part"):
        collect(receipts_of(storage, 3, clock), storage)
    assert storage.prefixes == ["0000", "00002-"]


def test_patience_begins_anew_with_every_part():
    """Parts that come one by one may take longer than that in all."""
    storage = Asked()
    clock = Clock(40, lambda number: arrive(storage, number))
    assert len(collect(receipts_of(storage, 4, clock), storage)) == 4
    assert clock.now == 2 * PATIENCE.total_seconds()


@pytest.mark.parametrize("number", [0, 2], ids=["earlier", "later"])
def test_word_of_another_save_is_none_of_this_one(number):
    """Neither its failure, nor its receipt, nor that it is given up, which wakes once: whoever is woken waits again."""
    storage, woken = DictStorage(), []
    post_failure(storage, NAME, 1, number)
    post(storage, NAME, replace(written(storage, 1), save_number=number))

    def meanwhile(nth):
        woken.append(receipts._woken.is_open)
        if nth == 1:
            receipts.give_up(number, "rank 1 died")
        else:
            arrive(storage, 1)

    receipts = receipts_of(storage, 2, Clock(0, meanwhile))
    assert [one.save_number for one in collect(receipts, storage)] == [1, 1]
    assert woken == [False, False]


def test_a_wait_has_an_end():
    """Other parts do not lengthen it, nor does hurry, which makes it ten seconds at most; a takeover ends it."""
    for patience, hurries, waited in ((60, False, 60), (60, True, 10), (4, True, 4)):
        storage, clock = Asked(), Clock(1)
        arrive(storage, *{*range(1, 13)} - {10, 12})  # who asks for these two is told of 11, too
        receipts = receipts_of(storage, 13, clock, timedelta(seconds=patience))
        if hurries:
            receipts._patience.hurry()
        with pytest.raises(SaveFailedError, match="ranks 10, 12 of 13 did not write"):
            collect(receipts, storage)
        assert waited <= clock.now <= waited + 1

    def check() -> None:
        raise StaleAttemptError("taken over")

    clock = Clock()
    with pytest.raises(StaleAttemptError, match="taken over"):
        collect(receipts_of(DictStorage(), 2, clock), DictStorage(), check)
    assert clock.now < PATIENCE.total_seconds() / 2


def test_part_that_lies_elsewhere_fails_the_save():
    for rank in (0, 2):
        for lost in (NAME.rank_key(rank), f"{NAME.rank_folder(rank)}/state-000.safetensors"):
            storage = DictStorage()
            arrive(storage, 1, 2)
            own = written(storage, 0)
            del storage.files[lost]
            with pytest.raises(SaveFailedError, match=f"rank {rank} wrote 3 bytes of shards and a document of 2 bytes"):
                Receipts(storage, 3, Patience(PATIENCE)).collect(NAME, own, lambda: None)


def test_certificates_are_told_from_receipts_and_foreign_files():
    """That of a checkpoint that was removed leaves nothing."""
    storage = DictStorage()
    with pytest.raises(CheckpointNotFoundError, match="is not certified"):
        post_certificate(storage, NAME, CheckpointName(1, 3, 0))
    assert storage.files == {}
    arrive(storage, 1)
    assert not is_certified(storage, NAME)
    others = ["receipts/certified-from-", "receipts/certified-from-a1", "certified-from-a000001-c0000000003-m0000"]
    later, earlier = "a000001-c0000000003-m0002", "a000001-c0000000003-m0000"
    named = [f"receipts/certified-from-{one}" for one in (later, earlier)]
    assert certified_from([*others, *named]) == (earlier, later)
    storage.files[f"{NAME.folder}/receipts/certified-from-{earlier}"] = b""
    assert is_certified(storage, NAME)
