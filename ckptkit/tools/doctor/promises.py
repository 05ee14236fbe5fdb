"""Compares a life on another number of ranks with what an elastic resume promises (docs/ranks.md).

Guarantees: the state of each new rank right after the restore is compared bit for bit with that of the old rank
whose place it takes. In mid-cycle, the sums of the accumulators over all ranks are compared, up to rounding. Of each
update that both jobs did after the change, the micro-batches of all ranks are compared together. Gradients, losses and
weights after the change are not compared, because they are summed in another order. Pure functions, any thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from ckptkit.core.progress import Progress
from ckptkit.core.rescale import fold_progress
from ckptkit.tools.doctor.compare import GIVEN, Difference, differing
from ckptkit.tools.doctor.diagnose import Diagnosis
from ckptkit.tools.doctor.lives.trace import Stepped, Total
from ckptkit.tools.doctor.lives.trial import Life

_ROUNDING = 1e-6  # of the sizes of all elements: each share of a float32 rounds by 6e-8 a few times
_REPEATED = "samples-repeated"
_BatchKey: TypeAlias = tuple[tuple[str, str], ...]
_Micro: TypeAlias = tuple[Life, Stepped, _BatchKey]  # one rank's micro-step


@dataclass(frozen=True)
class Change:
    """Describes one change of the number of ranks.

    Attributes:
        after: The micro-step of the old job after which its checkpoint was saved.
        began_at: The same in micro-steps of the new job.
        mid_cycle: Whether it was in the middle of a cycle.
        refused: Why the library did not restore it, or None.
    """

    after: int
    began_at: int
    mid_cycle: bool
    refused: str | None = None


@dataclass(frozen=True)
class Continuation:
    """Holds how a job continued on another number of ranks.

    Attributes:
        ranks: The other number.
        changes: The changes, in order.
        updates: After them, updates whose micro-batches were compared.
        micro_batches: How many micro-batches these were; 0 if the traces have no batches.
        compared: Micro-steps of killed and resumed lives that were compared, in all ranks.
        other_losses: Micro-steps of the new job whose reported loss alone differed in some life.
        converted: Values of objects given by name that the restore changed to something else than a fresh start has.
        cut: Leaves that are cut over the ranks, and were not compared after the restore.
        notes: Values in no checkpoint that began anew on the other ranks.
        difference: The first one, or None.
        diagnosis: Diagnosis of the difference; or of a refusal, without one.
    """

    ranks: int
    changes: tuple[Change, ...] = ()
    updates: int = 0
    micro_batches: int = 0
    compared: int = 0
    other_losses: tuple[int, ...] = ()
    converted: tuple[str, ...] = ()
    cut: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    difference: Difference | None = None
    diagnosis: Diagnosis | None = None


@dataclass(frozen=True)
class Unkept:
    """Holds a promise that is not kept, as a difference between the new job and the old one."""

    difference: Difference
    diagnosis: Diagnosis


@dataclass(frozen=True)
class Dealt:
    """Holds what was found about the data after a change; ``micro_batches`` is 0 if the traces have no batches."""

    updates: int
    micro_batches: int
    unkept: Unkept | None = None


@dataclass(frozen=True)
class Starts:
    """Holds a fresh start of each job, which shows what depends on the number of ranks alone."""

    old: Life
    new: Life


def unkept_by_restore(life: Life, before: Life, after: int, starts: Starts) -> Unkept | None:
    """Compare what ``life`` restored with what the ranks of ``before`` had after that micro-step, and saved.

    Values of objects that were given by name may be converted: see `converted`.
    """
    ranks, onto = len(before.each_rank), len(life.each_rank)
    progress = fold_progress(before.steps[after].progress, ranks, onto)
    begun = life.begun
    if begun is None or begun.checkpoint is None or begun.step != progress.batches_delivered:
        return _not_continued(life, before, after, progress)
    for new in life.each_rank:
        old = _taken_over(new, before)
        found = _unlike(new, old, after, progress, starts)
        if found is not None:
            return Unkept(found, _of_restore(found, before, after))
    return None if progress.at_boundary else _unkept_sums(life, before, after, progress)


def converted(life: Life, before: Life, after: int, starts: Starts) -> list[str]:
    """Return values of objects given by name that are neither what was stored nor what a fresh start has.

    Their ``load_state_dict()`` may convert them to the other number of ranks, or lose a part of them.
    """
    found: dict[str, None] = {}
    for new in life.each_rank:
        old = _taken_over(new, before)
        changed = _changed_names(new, old, after)
        built, _ = _built(new, old, starts)
        found.update((name, None) for name in changed if name in built and _given(new)[name] != built[name])
    return list(found)


def cut_leaves(life: Life) -> list[str]:
    """Return the names of leaves that are cut over the ranks, which are not compared."""
    return list(life.begun.restored.cut) if life.begun is not None and life.begun.restored is not None else []


def dealt_after(life: Life, reference: Life, after: int) -> Dealt:
    """Compare the micro-batches of each whole update after the change with those of the uninterrupted job.

    Args:
        life: On the other number of ranks.
        reference: The uninterrupted life.
        after: The micro-step of the reference after which the change was.
    """
    begun = life.begun.step if life.begun is not None else 0
    cycles, its = _cycles(life, begun), _cycles(reference, after)
    updates = micro_batches = 0
    unkept: list[Unkept] = []
    for cycle in sorted(cycles.keys() & its.keys()):
        mine, expected = cycles[cycle], its[cycle]
        if not expected and not mine:
            continue
        if Counter(key for _, _, key in mine) != Counter(key for _, _, key in expected):
            unkept.append(_of_data(reference, after, mine, expected))
        updates, micro_batches = updates + 1, micro_batches + len(expected)
    if not unkept:
        return Dealt(updates, micro_batches)
    # What is trained again, later, says more than what comes too early.
    worst = next((one for one in unkept if one.diagnosis.code == _REPEATED), unkept[0])
    return Dealt(updates, micro_batches, replace(worst, difference=unkept[0].difference))


def unkept_by_end(life: Life, before: Life, end: int) -> Unkept | None:
    """Return whether ``life`` ended before its micro-step ``end``, which the old job has done in its own numbers."""
    if life.last_step >= end:
        return None
    last = life.steps.get(life.last_step) or before.steps[before.last_step]
    return Unkept(
        Difference(life.last_step + 1, (), last, None, life, before),
        Diagnosis(
            "ended-early",
            "",
            f"on the other number of ranks, the script ended after micro-step {life.last_step}, and not after {end}, "
            "which is where the job with the old number came",
            "let the loop run to the same end on any number of ranks: count updates or samples, and not micro-steps",
        ),
    )


def begun_anew(life: Life, fresh: Life, before: Life, after: int) -> list[tuple[int | None, str]]:
    """Return rank and path of what is in no checkpoint, was changed by the old job, and is as at a fresh start."""
    found = []
    for new, first in zip(life.each_rank, fresh.each_rank, strict=True):
        old = _taken_over(new, before)
        if new.begun is None or first.begun is None or old.begun is None:
            continue
        now, at_first, built = new.begun.unseen or {}, first.begun.unseen or {}, old.begun.unseen or {}
        held = old.steps[after].unseen
        found += [
            (new.rank, path)
            for path in sorted(now.keys() & held.keys() & built.keys() & at_first.keys())
            if now[path] == at_first[path] and held[path] not in (built[path], now[path])
        ]
    return found


def _not_continued(life: Life, before: Life, after: int, progress: Progress) -> Unkept:
    begun, its = life.begun, before.begun
    step = begun.step if begun is not None else 0
    expected = before.steps[after].model_copy(update={"progress": progress})
    difference = Difference(min(step, progress.batches_delivered) + 1, (), expected, None, life, before)
    if begun is not None and its is not None and begun.checkpoint is None and begun.url != its.url:
        cause = f"on the other number of ranks, the script saves to another run root: {its.url}, then {begun.url}"
    else:
        cause = (
            f"on the other number of ranks, the script continued after micro-step {step}, although the checkpoint is "
            f"one after micro-step {progress.batches_delivered} there"
        )
    fix = "give the run one root for all numbers of ranks, and let restore() choose the checkpoint"
    return Unkept(difference, Diagnosis("never-resumed", "" if begun is None else begun.url, cause, fix))


def _unlike(new: Life, old: Life, after: int, progress: Progress, starts: Starts) -> Difference | None:
    """Return what a new rank did not take over from the old one."""
    line, begun = old.steps[after], new.begun
    restored = begun.restored if begun is not None else None
    assert begun is not None and restored is not None  # noqa: S101, PT018 - the plan says so
    kinds = ("batch/", "input/", "counters/", *(() if progress.at_boundary else ("accumulators/",)))
    expected, found = (_without(one, kinds, restored.cut) for one in (line.digests, begun.digests))
    excused = _changed_names(new, old, after) - _lost_names(new, old, after, starts)
    names = _moved(restored.progress, progress) or [name for name in differing(found, expected) if name not in excused]
    if not names:
        return None
    held = Stepped(step=begun.step, progress=restored.progress, digests=begun.digests)
    return Difference(begun.step, tuple(names), line.model_copy(update={"progress": progress}), held, new, old)


def _changed_names(new: Life, old: Life, after: int) -> set[str]:
    """Return the values of objects given by name, in both jobs, that the restore has changed."""
    held, given = old.steps[after].digests, _given(new)
    both = held.keys() & given.keys()
    return {name for name in both if name.startswith(GIVEN) and held[name] != given[name]}


def _lost_names(new: Life, old: Life, after: int, starts: Starts) -> set[str]:
    """Return the names in `_changed_names` that are as at a fresh start, although the old job had changed them."""
    held, given = old.steps[after].digests, _given(new)
    built, at_first = _built(new, old, starts)
    names = _changed_names(new, old, after)
    return {name for name in names if given[name] == built.get(name) and held[name] != at_first.get(name)}


def _built(new: Life, old: Life, starts: Starts) -> tuple[dict[str, str], dict[str, str]]:
    """Return what these ranks of the new and of the old job have at a fresh start."""
    return _given(starts.new.each_rank[new.rank or 0]), _given(starts.old.each_rank[old.rank or 0])


def _given(life: Life) -> dict[str, str]:
    """Return the digests right after the restore."""
    return life.begun.digests if life.begun is not None else {}


def _taken_over(new: Life, before: Life) -> Life:
    """Return the old rank that a new one takes over."""
    return before.each_rank[(new.rank or 0) % len(before.each_rank)]


def _without(digests: Mapping[str, str], kinds: tuple[str, ...], names: tuple[str, ...]) -> dict[str, str]:
    left_out = ("loss", *names)
    return {name: one for name, one in digests.items() if not name.startswith(kinds) and name not in left_out}


def _moved(found: Progress, expected: Progress) -> list[str]:
    pairs = zip(found, expected, strict=True)
    return [f"counters/{name}" for (name, mine), (_, its) in pairs if mine != its]


def _of_restore(difference: Difference, before: Life, after: int) -> Diagnosis:
    first, ranks = difference.names[0], len(before.each_rank)
    rank = difference.rank or 0
    kind = first.partition("/")[0]
    fix = {
        "named": "let load_state_dict() take what state_dict() gave whatever the number of ranks is: rank r gets the "
        "state of old rank r % N; keep what must survive the change in all ranks alike",
        "rng": "seed nothing between restore() and the first batch, and nothing that depends on the number of ranks",
    }.get(kind, "change nothing that a checkpoint holds because the number of ranks is another one")
    return Diagnosis(
        "lost-on-change",
        first,
        f"after the restore on the other number of ranks, {first} of rank {rank} is not what rank {rank % ranks} of "
        f"{ranks} had after micro-step {after}, and saved",
        fix,
        difference.names[1:4],
    )


def _unkept_sums(life: Life, before: Life, after: int, progress: Progress) -> Unkept | None:
    """Compare the sums of the accumulators over all ranks."""
    old = [next((one.totals for one in part.saved if one.step == after), {}) for part in before.each_rank]
    new = [part.begun.restored.totals if part.begun and part.begun.restored else {} for part in life.each_rank]
    for name in sorted({*old[0], *new[0]}):
        if all(name in one for one in (*old, *new)) and _agree([one[name] for one in old], [one[name] for one in new]):
            continue
        expected = before.steps[after].model_copy(update={"progress": progress})
        difference = Difference(progress.batches_delivered, (f"accumulators/{name}",), expected, expected, life, before)
        return Unkept(
            difference,
            Diagnosis(
                "sums-not-kept",
                name,
                f"the sum of {name} over all ranks is another one after the restore on the other number of ranks",
                "change no accumulator because the number of ranks is another one; train with "
                "ckptkit.AccumulationTrainCell",
            ),
        )
    return None


def _agree(old: list[Total], new: list[Total]) -> bool:
    sizes = [sum(one.size for one in totals) for totals in (old, new)]
    tolerance = _ROUNDING * max(sizes)
    return all(
        abs(sum(getattr(one, part) for one in old) - sum(getattr(one, part) for one in new)) <= tolerance
        for part in ("plain", "signed")
    )


def _cycles(life: Life, after: int) -> dict[int, list[_Micro]]:
    """Return the micro-steps with a batch, of all ranks after ``after``, by the number of their cycle if it ended."""
    found: dict[int, list[_Micro]] = {}
    ended = 0
    for _, part, line in _lines(life):
        if line.step > after:
            cycle = line.progress.cycles + (not line.progress.at_boundary)
            ended = max(ended, line.progress.cycles)
            found.setdefault(cycle, []).extend([(part, line, key)] if (key := _key(line)) else [])
    return {cycle: lines for cycle, lines in found.items() if cycle <= ended}


def _key(line: Stepped) -> _BatchKey:
    return tuple(sorted((name, one) for name, one in line.digests.items() if name.startswith(("batch/", "input/"))))


def _of_data(reference: Life, after: int, mine: list[_Micro], expected: list[_Micro]) -> Unkept:
    """Say what one update trained that it should not have."""
    strange = _without_equals(mine, expected)
    missing = _without_equals(expected, mine)
    keys = Counter(key for _, _, key in mine)
    origins = [_origin(reference, after, key, again=keys[key] > 1) for _, _, key in strange]
    # A micro-batch that is trained again says more than one that comes too early.
    at = next((index for index, (code, _) in enumerate(origins) if code == _REPEATED), 0)
    code, what = origins[at] if origins else ("samples-left-out", f"{len(mine)} micro-batches")
    part, line, key = strange[at] if strange else (mine or expected)[0]
    instead = (missing or expected)[0][1].model_copy(update={"progress": line.progress})
    difference = Difference(line.step, tuple(name for name, _ in key), instead, line, part, reference)
    update = line.progress.cycles + (not line.progress.at_boundary)
    left_out = f"; {len(missing)} of its {len(expected)} micro-batches are not in it" if missing else ""
    return Unkept(
        difference,
        Diagnosis(
            code,
            "the order of the samples",
            f"after the change to the other number of ranks, update {update} trained {what} (by rank {part.rank or 0} "
            f"in micro-step {line.step}){left_out}",
            "deal all ranks one order of the samples: ckptkit.data.GlobalSampler in a pipeline, "
            "ckptkit.data.GlobalIndices with ckptkit.data.resumable in a loop; let what augments a sample draw from "
            "(seed, epoch, index), as ckptkit.data.Augmented does",
        ),
    )


def _without_equals(some: list[_Micro], others: list[_Micro]) -> list[_Micro]:
    """Return ``some`` without one micro-batch with the same batch for each of ``others``."""
    left = Counter(key for _, _, key in others)
    found = []
    for one in some:
        if left[one[2]]:
            left[one[2]] -= 1
        else:
            found.append(one)
    return found


def _origin(reference: Life, after: int, key: _BatchKey, *, again: bool) -> tuple[str, str]:
    """Return a code and words for where the uninterrupted job had a micro-batch."""
    for rank, _, line in _lines(reference):
        if _key(line) == key:
            place = f"micro-step {line.step} of rank {rank}"
            if line.step <= after:
                return _REPEATED, f"a micro-batch again that was trained before the change, in {place}"
            if again:
                return _REPEATED, f"the micro-batch of {place} twice"
            return "data-shifted", f"the micro-batch of another update, that of {place}"
    return "data-differs", "a micro-batch that no rank of the uninterrupted job had"


def _lines(life: Life) -> Iterator[tuple[int, Life, Stepped]]:
    for step in sorted(life.steps):
        for rank, part in enumerate(life.each_rank):
            if step in part.steps:
                yield rank, part, part.steps[step]
