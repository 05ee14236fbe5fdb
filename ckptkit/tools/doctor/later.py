"""Compares what a run begins with that follows on the examined one, in a life that was resumed before that.

Such a run may begin with weights of the one before, or with numbers that its loop has kept. Checkpoints of its own hold
what came of it, so its own examination does not show that a resume of the run before loses it.

Guarantees: what two uninterrupted lives do not agree on is left out. Nothing is written. Any thread.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ckptkit.run.catalog import list_checkpoints
from ckptkit.storage import open_storage
from ckptkit.tools.doctor.compare import Difference, differing, kind_of
from ckptkit.tools.doctor.diagnose import Diagnosis
from ckptkit.tools.doctor.lives.trace import Later, Stepped, scratch_run
from ckptkit.tools.doctor.lives.trial import Life
from ckptkit.tools.doctor.lost import compared, forgotten, lost_values

_MAY_DIFFER = ("loss", "told")  # by rounding; from call to call


def begins_later(first: Life, last: int) -> bool:
    """Return whether another run has begun after micro-step ``last``, so that a life has to go on beyond it."""
    return bool(_later(first, last))


def is_complete(root: Path, first: Life, last: int) -> bool:
    """Return whether the run has a checkpoint after micro-step ``last``: a script need not save at its end.

    Args:
        root: The scratch folder of the lives so far.
        first: The first life, which tells the run root.
        last: The last micro-step.
    """
    found = [] if first.begun is None else list_checkpoints(open_storage(scratch_run(root, first.begun.url)))
    return any(one.progress is not None and one.progress.batches_delivered == last for one in found)


def later_difference(life: Life, first: Life, second: Life) -> Difference | None:
    """Return the first difference in ``life`` of a run that begins after the last micro-step of ``first``, if any."""
    for mine, its, again in zip(life.each_rank, first.each_rank, second.each_rank, strict=False):
        found, known = _later(mine, its.last_step), _later(again, its.last_step)
        for place, expected in _later(its, its.last_step).items():
            if place not in found or place not in known:
                continue
            vague = differing(known[place].digests, expected.digests)
            names = [name for name in differing(found[place].digests, expected.digests) if name not in vague]
            names = [name for name in names if kind_of([name]) not in _MAY_DIFFER]
            if names:
                url, step = place
                return Difference(step, tuple(names), expected, found[place], mine, its, url)
    return None


def diagnose_later(difference: Difference, unstable: frozenset[str]) -> Diagnosis:
    """Diagnose a difference in a run that begins when the examined one has ended."""
    life, reference = difference.life, difference.reference
    last = reference.last_step
    at_end = replace(difference, step=last, names=(), expected=reference.steps[last], found=life.steps.get(last))
    was_complete = difference.resumed_at == last
    named = sorted(lost_values(at_end).keys() - unstable) if was_complete else forgotten(at_end, unstable)
    how = "was complete when the process started again" if was_complete else "was resumed, and all of it is equal"
    return Diagnosis(
        "next-run-differs",
        named[0] if named else str(difference.url),
        f"this run {how}. But the run at {difference.url} begins after it, and differs: "
        f"{difference.names[0]} likely depends on something of this run that no checkpoint holds"
        + (f", such as {compared(at_end, named[0])}" if named else ""),
        "let the next run begin with what the checkpoints of this one hold: give what it reads state_dict() and "
        "load_state_dict(), and pass it by name to this one: stateful={'name': it}",
        tuple(named[1:4]),
    )


def _later(life: Life, last: int) -> dict[tuple[str, int], Stepped]:
    """Return the micro-steps of runs that began after micro-step ``last``, by run root and number."""
    lines = [one for one in life.events if isinstance(one, Later) and one.after == last]
    return {(one.url, one.line.step): one.line for one in lines}
