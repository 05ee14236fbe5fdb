"""Finds the first difference between two lives.

Guarantees: compares every digest of every micro-step that both did; finds the earliest micro-step with a difference,
and orders the names in it from cause to effect. Every rank of a job is compared with itself; of ranks that differ at
one micro-step, the one with the likeliest cause is named. A loss that differs while nothing that training depends on
ever does is reported separately, and is not a difference. Pure functions, any thread.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ckptkit.tools.doctor.lives.life_process import TrialLife
from ckptkit.tools.doctor.lives.trace import Stepped

_ROUNDING = 0.02  # of a loss; bfloat16 has 8 bits
# In a micro-step the batch precedes what the loop makes of it and the loss, and these the results of the update.
_ORDER = (
    *("batch", "input", "loss", "accumulators", "weights", "optimizer", "parameters", "counters", "rng"),
    *("named", "told"),
)
_TRAINED = ("weights", "accumulators", "parameters")
GIVEN = ("named/", "told/", "parameters/")  # of objects that are given by name


@dataclass(frozen=True)
class TraceDifference:
    """Describes where a life differs from the reference."""

    step: int  # the earliest micro-step that differs
    names: tuple[str, ...]  # all that differs in it, the likely first cause first; empty if a life did not reach it
    expected: Stepped  # the trace of the reference there
    # The trace of the life there; None if it did not reach it. With it and without names, the reference had ended
    # before, and is shown at its end.
    found: Stepped | None
    life: TrialLife  # the one that differs
    reference: TrialLife  # the one that it was compared with

    @property
    def rank(self) -> int | None:
        """The rank that differs; None in a job of one rank, and if it is the whole job."""
        return self.life.rank

    @property
    def resumed_at(self) -> int:
        """The micro-step after which the life began; 0 on a fresh start."""
        return self.life.begun.step if self.life.begun is not None else 0


def first_difference(
    life: TrialLife, reference: TrialLife, last: int, without: frozenset[str] = frozenset()
) -> TraceDifference | None:
    """Compare ``life`` with ``reference`` from where it began up to micro-step ``last``.

    Reported losses alone do not count as a difference: see `other_losses`; nor do the names in ``without``.
    """
    pairs = zip(life.each_rank, reference.each_rank, strict=False)  # one pair if no rank restored the run
    by_rank = [_differences(mine, its, last, without) for mine, its in pairs]
    first = [
        differences[0]
        for differences in by_rank
        if not all(_is_of_loss_alone(difference) for difference in differences)
    ]
    return min(first, key=_earliest, default=None)


def first_unequal_replica(life: TrialLife) -> TraceDifference | None:
    """Return where a value that must be the same in every rank first differs from rank 0's, if it does.

    One uninterrupted life is enough: a rank of another one that differs from rank 0 there differs from itself here.
    """
    if not life.ranks or life.begun is None:
        return None
    reference, names = life.ranks[0], frozenset(life.begun.replicated)
    differences = []
    for rank in life.ranks[1:]:
        for step in sorted(rank.steps.keys() & reference.steps.keys()):
            expected, here = reference.steps[step], rank.steps[step]
            unequal = [name for name in differing(here.digests, expected.digests) if name in names]
            if unequal:
                differences.append(TraceDifference(step, tuple(unequal), expected, here, rank, reference))
                break
    return min(differences, key=_earliest, default=None)


def other_losses(life: TrialLife, reference: TrialLife, last: int) -> list[int]:
    """Return the micro-steps that reported another loss, although their gradients and all else were equal.

    MindSpore's CPU kernels may sum a loss in another order in another process, so that its last bit differs. The order
    of that sum changes no gradient; anything that does shows in accumulators and weights.
    """
    pairs = zip(life.each_rank, reference.each_rank, strict=False)
    steps = {
        difference.step
        for mine, its in pairs
        for difference in _differences(mine, its, last)
        if _is_of_loss_alone(difference)
    }
    return sorted(steps)


def beyond_the_end(life: TrialLife, reference: TrialLife, last: int) -> TraceDifference | None:
    """Return a difference without names if ``life`` did a micro-step after ``last``, where ``reference`` has ended."""
    if not reference.ended_by_itself or life.planned_kill is not None:
        return None
    pairs = zip(life.each_rank, reference.each_rank, strict=False)
    for mine, its in pairs:
        if last == its.last_step < mine.last_step and last in mine.steps:
            return TraceDifference(last + 1, (), its.steps[last], mine.steps[last + 1], mine, its)
    return None


def begun_too_early(life: TrialLife, reference: TrialLife, begun: int) -> TraceDifference | None:
    """Return a difference without names if ``life`` did again, as if new, what a checkpoint after ``begun`` held."""
    if life.begun is None or life.begun.step >= begun:
        return None
    step = min(begun + 1, reference.last_step)  # the last save may be after the last micro-step
    return TraceDifference(step, (), reference.steps[step], None, life, reference)


def marks_of_process(first: TrialLife, second: TrialLife) -> frozenset[str]:
    """Return what states hold or tell that differs between two uninterrupted lives anyway, such as a time or `id()`.

    What they hold is such a mark only if the lives are equal in all else, and if parameters show that: of a training
    whose network is no cell and is given by name, what is held is all that there is.
    """
    pairs = list(zip(first.each_rank, second.each_rank, strict=False))
    both = [(life.steps[at], other.steps[at]) for life, other in pairs for at in life.steps.keys() & other.steps.keys()]
    names = {name for stepped, other in both for name in differing(stepped.digests, other.digests)}
    differs = any(kind_of([name]) not in ("told", "named", "loss") for name in names)
    marks = ("told",) if differs or not _shows_training(first) else ("told", "named")
    return frozenset(name for name in names if kind_of([name]) in marks)


def _shows_training(life: TrialLife) -> bool:
    """Return whether training changes a parameter from one micro-step to another.

    In a cycle that is longer than the life, it changes the accumulators only.
    """
    values: dict[str, str] = {}
    for line in life.steps.values():
        for name, digest in line.digests.items():
            if kind_of([name]) in _TRAINED and values.setdefault(name, digest) != digest:
                return True
    return False


def _differences(
    life: TrialLife, reference: TrialLife, last: int, without: frozenset[str] = frozenset()
) -> list[TraceDifference]:
    begin = life.begun.step + 1 if life.begun is not None else 1
    differences: list[TraceDifference] = []
    for step in range(begin, last + 1):
        expected, stepped = reference.steps[step], life.steps.get(step)
        if stepped is None:
            return [*differences, TraceDifference(step, (), expected, None, life, reference)]
        names = [name for name in differing(stepped.digests, expected.digests) if name not in without]
        if names:
            differences.append(TraceDifference(step, tuple(names), expected, stepped, life, reference))
    return differences


def _is_of_loss_alone(difference: TraceDifference) -> bool:
    """Return whether a reported loss differs as by rounding; one whose number is not known counts as such."""
    if difference.names != ("loss",) or difference.found is None:
        return False
    try:
        numbers = [float(stepped.digests["loss"]) for stepped in (difference.expected, difference.found)]
    except (KeyError, ValueError):  # it is absent in one, or a digest
        return True
    return math.isclose(*numbers, rel_tol=_ROUNDING, abs_tol=_ROUNDING)


def differing(digests: Mapping[str, str], others: Mapping[str, str]) -> list[str]:
    """Return the names whose digests differ or that one of the two lacks, likeliest cause first."""
    return sorted(unequal(digests, others), key=_blame)


def unequal(values: Mapping[str, object], others: Mapping[str, object]) -> set[str]:
    """Return the names whose values differ or that one of the two lacks."""
    return {name for name in values.keys() | others.keys() if values.get(name) != others.get(name)}


def unstable(first: TrialLife, second: TrialLife) -> frozenset[str]:
    """Return the paths of unseen values that differ between two lives anyway, such as times and other threads' work."""
    paths: set[str] = set()
    for step in first.steps.keys() & second.steps.keys():
        stepped, other = first.steps[step], second.steps[step]
        paths |= unequal(stepped.unseen, other.unseen) | unequal(stepped.began, other.began)
    return frozenset(paths)


def kind_of(names: Iterable[str]) -> str:
    """Return the kind of the first of ``names``, such as ``weights``; empty without names."""
    return next((name.partition("/")[0] for name in names), "")


def _earliest(difference: TraceDifference) -> tuple[int, tuple[int, str], int]:
    # A rank that did not get there at all comes first, before its effect on the others.
    return (difference.step, _blame(difference.names[0]) if difference.names else (-1, ""), difference.rank or 0)


def _blame(name: str) -> tuple[int, str]:
    kind = name.partition("/")[0]
    return (_ORDER.index(kind) if kind in _ORDER else len(_ORDER), name)


def same_batch(steps: Mapping[int, Stepped], resumed: Stepped) -> int | None:
    """Return the first micro-step of the reference that had the same batch."""
    batch = _batch(resumed)
    return next((step for step, stepped in sorted(steps.items()) if _batch(stepped) == batch), None)


def _batch(line: Stepped) -> dict[str, str]:
    return {name: digest for name, digest in line.digests.items() if name.startswith("batch/")}
