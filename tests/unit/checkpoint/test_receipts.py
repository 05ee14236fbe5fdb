"""How rank 0 asks which parts are there."""

from __future__ import annotations

from collections.abc import Callable
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


def written(storage: DictStorage, rank: int) -> Receipt:
    """The receipt for a part that lies there."""
    entry = FileEntry(key=NAME.rank_key(rank), size_bytes=2, digest="0" * 32)
    storage.files |= {entry.key: b"{}", f"{NAME.rank_folder(rank)}/state-000.safetensors": b"123"}
    return Receipt(rank, 1, entry, 3, 3)


def collect(storage: DictStorage, ranks: int, meanwhile: list[Callable[[], None]]) -> tuple[Receipt, ...]:
    """With one of ``meanwhile`` in each pause."""
    waits = iter(meanwhile)
    receipts = Receipts(storage, ranks, PATIENCE, monotonic=lambda: 0.0, pause=lambda _: next(waits)())
    return receipts.collect(NAME, written(storage, 0), lambda: None)


def test_rank_0_asks_only_for_missing_parts():
    for ranks, late, prefix in [
        (4, [3], "00003-"),
        (1300, [1203, 1299], "012"),
        (1300, [7, 1299], "0"),
        (12, [10, 11], "0001"),
    ]:
        storage = Asked()
        for rank in set(range(1, ranks)) - set(late):
            post(storage, NAME, written(storage, rank))

        def arrive(storage=storage, late=late) -> None:
            for rank in late:
                post(storage, NAME, written(storage, rank))

        assert [one.rank for one in collect(storage, ranks, [arrive])] == [*range(ranks)]
        assert storage.prefixes[-1] == prefix


def test_failed_part_is_noticed_when_asked_alone():
    storage = Asked()
    post(storage, NAME, written(storage, 1))
    with pytest.raises(SaveFailedError, match="rank 2 could not write a part"):
        collect(storage, 3, [lambda: post_failure(storage, NAME, 2, 1)])
    assert storage.prefixes == ["0000", "00002-"]


def test_patience_begins_anew_with_every_part():
    """Parts that come one by one may take longer than that in all."""
    storage, now = Asked(), [0.0]

    def pause(_: float) -> None:
        now[0] += 40
        post(storage, NAME, written(storage, round(now[0]) // 40))

    receipts = Receipts(storage, 4, PATIENCE, monotonic=lambda: now[0], pause=pause)
    assert len(receipts.collect(NAME, written(storage, 0), lambda: None)) == 4
    assert now[0] == 2 * PATIENCE.total_seconds()


def test_pauses_grow_until_a_part_comes():
    """The others are likely to come soon after it."""
    storage, pauses = Asked(), []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) in (15, 18):
            post(storage, NAME, written(storage, len(pauses) // 15 + (len(pauses) == 18)))

    Receipts(storage, 3, PATIENCE, monotonic=lambda: 0.0, pause=pause).collect(NAME, written(storage, 0), lambda: None)
    assert pauses[:15] == sorted(pauses[:15])
    assert pauses[14] == 1.0
    assert pauses[15:18] == pauses[:3]


def test_patience_ends_though_other_parts_are_there():
    storage, now = Asked(), [0.0]
    for rank in {*range(1, 13)} - {10, 12}:  # who asks for these two is told of 11, too
        post(storage, NAME, written(storage, rank))

    def pause(_: float) -> None:
        now[0] += 20
        assert now[0] < 10 * PATIENCE.total_seconds(), "rank 0 waits for ever"

    receipts = Receipts(storage, 13, PATIENCE, monotonic=lambda: now[0], pause=pause)
    with pytest.raises(SaveFailedError, match="10"):
        receipts.collect(NAME, written(storage, 0), lambda: None)
    assert now[0] <= 2 * PATIENCE.total_seconds()


def test_word_of_another_save_is_none_of_this_one():
    """Neither its failure, nor its receipt, nor that it is given up."""
    for number in (0, 2):
        storage = DictStorage()
        post_failure(storage, NAME, 1, number)
        post(storage, NAME, replace(written(storage, 1), save_number=number))
        receipts = Receipts(storage, 2, PATIENCE, pause=lambda _: post(storage, NAME, written(storage, 1)))  # noqa: B023
        receipts.give_up(number, "rank 1 died")
        collected = receipts.collect(NAME, written(storage, 0), lambda: None)
        assert [one.save_number for one in collected] == [1, 1]


def test_word_of_another_save_wakes_once():
    """Whoever is woken looks, and waits again."""
    storage = DictStorage()
    woken = []

    def pause(_: float) -> None:
        woken.append(receipts._woken.is_open)
        if len(woken) == 1:
            receipts.give_up(2, "rank 1 died")
        else:
            post(storage, NAME, written(storage, 1))

    receipts = Receipts(storage, 2, PATIENCE, pause=pause)
    receipts.hurry()
    receipts.collect(NAME, written(storage, 0), lambda: None)
    assert woken == [False, False]


def test_first_reason_to_give_up_is_told():
    receipts = Receipts(DictStorage(), 2, PATIENCE)
    receipts.give_up(1, "rank 1 died")
    receipts.give_up(1, "the world ended")
    with pytest.raises(SaveFailedError, match=r"^rank 1 died"):
        receipts.collect(NAME, written(DictStorage(), 0), lambda: None)


def test_hurry_waits_ten_seconds_at_most():
    """It never lengthens the patience."""
    for patience, waited in ((60, 10), (4, 4)):
        now = [0.0]
        receipts = Receipts(
            *(DictStorage(), 2, timedelta(seconds=patience)),
            monotonic=lambda now=now: now[0],
            pause=lambda _, now=now: now.append(now.pop() + 1),
        )
        receipts.hurry()
        with pytest.raises(SaveFailedError, match="rank 1 of 2 did not write"):
            receipts.collect(NAME, written(DictStorage(), 0), lambda: None)
        assert now == [waited]


def test_takeover_ends_a_long_wait():
    waits: list[float] = []

    def check() -> None:
        raise StaleAttemptError("taken over")

    receipts = Receipts(DictStorage(), 2, PATIENCE, monotonic=lambda: sum(waits), pause=waits.append)
    with pytest.raises(StaleAttemptError, match="taken over"):
        receipts.collect(NAME, written(DictStorage(), 0), check)
    assert sum(waits) < PATIENCE.total_seconds() / 2


def test_part_that_lies_elsewhere_fails_the_save():
    for rank in (0, 2):
        for lost in (NAME.rank_key(rank), f"{NAME.rank_folder(rank)}/state-000.safetensors"):
            storage = DictStorage()
            for other in (1, 2):
                post(storage, NAME, written(storage, other))
            own = written(storage, 0)
            del storage.files[lost]
            with pytest.raises(SaveFailedError, match=f"rank {rank} wrote 3 bytes of shards and a document of 2 bytes"):
                Receipts(storage, 3, PATIENCE).collect(NAME, own, lambda: None)


def test_certificate_of_a_removed_checkpoint_leaves_nothing():
    storage = DictStorage()
    with pytest.raises(CheckpointNotFoundError, match="is not certified"):
        post_certificate(storage, NAME, CheckpointName(1, 3, 0))
    assert storage.files == {}


def test_certificates_are_told_from_receipts_and_foreign_files():
    storage = DictStorage()
    post(storage, NAME, written(storage, 1))
    assert not is_certified(storage, NAME)
    others = ["receipts/certified-from-", "receipts/certified-from-a1", "certified-from-a000001-c0000000003-m0000"]
    later, earlier = "a000001-c0000000003-m0002", "a000001-c0000000003-m0000"
    named = [f"receipts/certified-from-{one}" for one in (later, earlier)]
    assert certified_from([*others, *named]) == (earlier, later)
    storage.files[f"{NAME.folder}/receipts/certified-from-{earlier}"] = b""
    assert is_certified(storage, NAME)
