"""How rank 0 asks which parts are there."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from dict_storage import DictStorage

from ckptkit.errors import SaveFailedError
from ckptkit.manifest import FileEntry
from ckptkit.run.names import CheckpointName
from ckptkit.run.receipts import Receipt, Receipts, post, post_failure

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


@pytest.mark.parametrize(
    ("ranks", "late", "prefix"),
    [(4, [3], "00003-"), (1300, [1203, 1299], "012"), (1300, [7, 1299], "0"), (12, [10, 11], "0001")],
)
def test_rank_0_asks_only_for_missing_parts(ranks, late, prefix):
    storage = Asked()
    for rank in set(range(1, ranks)) - set(late):
        post(storage, NAME, written(storage, rank))

    def arrive() -> None:
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
