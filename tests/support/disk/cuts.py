"""Which cuts to look at: of all that a disk may have kept, the states that have found mistakes.

`cuts` gives for each moment: nothing kept that was not durable, all of it, all but the blocks of files, one change
lost, one kept, random parts with torn writes, and what a journal keeps: names up to some moment and none after it, with
none, all or a part of the bytes, since one commit of the journal takes all names before it along (ext4). The journal's
states are among those that POSIX allows, but chance would hardly find them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from random import Random

from .model import Bytes, Change, Cut, Log, Names, Sync

Keep = Callable[[int, Change], Change | None]


def nothing(number: int, change: Change) -> Change | None:
    """Of what is not durable, nothing reached the disk."""
    return None


def everything(number: int, change: Change) -> Change | None:
    return change


def zeros(number: int, change: Change) -> Change | None:
    """Names and sizes did, and the blocks of the files did not."""
    return replace(change, data=bytes(len(change.data))) if isinstance(change, Bytes) else change


def cuts(log: Log, random: Random, *, many: int | None = None, since: int = 0) -> Iterator[Cut]:
    for moment in range(since, len(log) + 1):
        yield from cuts_at(log, moment, random, many)


def some_cuts(log: Log, random: Random, count: int, *, since: int = 0) -> list[Cut]:
    """So many, each at a moment, and of a kind, that chance chooses."""
    moments = [random.randrange(since, len(log) + 1) for _ in range(count)]
    return [random.choice(list(cuts_at(log, moment, random, 1))) for moment in moments]


def cuts_at(log: Log, moment: int, random: Random, many: int | None = None) -> Iterator[Cut]:
    """Those at ``moment``; see `cuts`."""
    numbers = log.open_at(moment)
    yield Cut(moment, nothing, "nothing kept")
    if not numbers:
        return
    yield Cut(moment, everything, "everything kept")
    yield Cut(moment, zeros, "blocks of zeros")
    for number in _drawn(numbers, many, random):
        yield Cut(moment, _one(number, lost=True), "one lost")
        yield Cut(moment, _one(number, lost=False), "one kept")
    for _ in range(20 if many is None else many):
        yield Cut(moment, _some(numbers, log, random), "by chance")
    yield from _journals(log, moment, numbers, many, random)


def _journals(log: Log, moment: int, numbers: Sequence[int], many: int | None, random: Random) -> Iterator[Cut]:
    last = max(
        (n for n, entry in enumerate(log.entries[:moment]) if isinstance(entry, Sync) and entry.succeeded), default=-1
    )
    names = [number for number in numbers if number > last and isinstance(log.entries[number], Names)]
    for end in _drawn([*names, moment], many, random):
        for data, how in (
            (nothing, "none"),
            (zeros, "zeros"),
            (everything, "all"),
            (_some(numbers, log, random), "some"),
        ):
            yield Cut(moment, _journal(end, data), f"a journal up to {end} with {how} of the data")


def _drawn(of: Sequence[int], many: int | None, random: Random) -> Sequence[int]:
    return of if many is None or len(of) <= many else random.sample(of, many)


def _one(which: int, *, lost: bool) -> Keep:
    return lambda number, change: change if (number != which) is lost else None


def _journal(end: int, data: Keep) -> Keep:
    def keep(number: int, change: Change) -> Change | None:
        if isinstance(change, Names):
            return change if number < end else None
        return data(number, change)

    return keep


def _some(numbers: Sequence[int], log: Log, random: Random) -> Keep:
    """Of each change it is chance whether it is kept, and how much of its bytes; drawn once: a cut is one state."""
    share = random.choice([0.2, 0.5, 0.8])
    kept: dict[int, Change | None] = {}
    for number in numbers:
        change = log.entries[number]
        assert isinstance(change, Change)
        kept[number] = None if random.random() < share else _torn(change, random)
    return lambda number, change: kept[number]


def _torn(change: Change, random: Random) -> Change:
    if not isinstance(change, Bytes) or random.random() < 0.4:
        return change
    size = len(change.data)
    if random.random() < 0.4:
        return replace(change, data=change.data[: random.randrange(size + 1)])
    begin, end = random.choice([(0, size), sorted(random.sample(range(size + 1), 2))])
    return replace(change, data=change.data[:begin] + bytes(end - begin) + change.data[end:])
