"""Compares a checkpoint with a training before anything is changed, and its counters with each other.

Guarantees: after all checks passed, the checkpoint fits leaf by leaf and the run can go on exactly; a
disagreement raises and names what differs, and nothing is ever guessed. Changes nothing. Main thread only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ckptkit.accumulation import AccumulationSchedule
from ckptkit.contents import Contents, TensorInfo
from ckptkit.errors import ResumeError, StateMismatchError
from ckptkit.mindspore.data.position import Position
from ckptkit.placement import Box
from ckptkit.progress import Progress
from ckptkit.tensors import Leaf


def difference(name: str, leaf: Leaf, stored: TensorInfo) -> str | None:
    """How a stored tensor differs from the leaf of that name, or None."""
    placement = leaf.spec.placement
    shape = placement.global_shape if isinstance(placement, Box) else leaf.shape
    if (leaf.dtype, shape) == (stored.dtype, stored.shape):
        return None
    return (
        f"{name}: the checkpoint has {stored.dtype} {list(stored.shape)}, this training has {leaf.dtype} {list(shape)}"
    )


def check_leaves(contents: Contents, expected: Mapping[str, Leaf]) -> None:
    """Raise StateMismatchError, naming every leaf, unless the checkpoint holds exactly ``expected``."""
    found = {name for name, one in contents.entries.items() if one.role != "state"}
    problems = [f"missing in the checkpoint: {name}" for name in sorted(expected.keys() - found)]
    problems += [f"not in this training: {name}" for name in sorted(found - expected.keys())]
    for name in sorted(expected.keys() & found):
        problem = difference(name, expected[name], contents.entries[name])
        if problem is not None:
            problems.append(problem)
    if problems:
        raise StateMismatchError(
            f"the checkpoint {contents.checkpoint} does not fit this training. Nothing was changed. "
            "Build network and optimizer as they were, or start under another root:\n  " + "\n  ".join(problems)
        )


def check_stateful(given: Collection[str], stored: Collection[str]) -> None:
    """Raise StateMismatchError unless the same stateful objects are given as are stored."""
    missing, extra = sorted(set(given) - set(stored)), sorted(set(stored) - set(given))
    if missing or extra:
        raise StateMismatchError(
            "the stateful objects differ. Nothing was changed. "
            f"Given now but not in the checkpoint: {missing or 'none'}; in the checkpoint but not given: "
            f"{extra or 'none'}. Give the same ones as before, or start under another root."
        )


def check_same_training(contents: Contents, recorded: Mapping[str, Any] | None, mine: Mapping[str, Any] | None) -> None:
    """Raise ResumeError if the train cell accumulates in another way than the one of the checkpoint.

    ``recorded`` and ``mine`` name the ways, None for a cell that is no `AccumulationTrainCell`.
    """
    if (recorded is None) != (mine is None):
        raise ResumeError(
            f"the checkpoint {contents.checkpoint} was taken {'without' if recorded is None else 'of'} an "
            f"AccumulationTrainCell, and this training is {'without' if mine is None else 'of'} one. Train with the "
            "same kind of cell, or start under another root."
        )
    if recorded is None or mine is None:
        return
    for option in ("normalize", "remainder"):
        if recorded[option] != mine[option]:
            raise ResumeError(
                f"the checkpoint {contents.checkpoint} was taken with {option}={recorded[option]!r}, this train cell "
                f"has {mine[option]!r}. Build it with {option}={recorded[option]!r}, or start under another root."
            )


def check_cycle(
    contents: Contents, recorded: Mapping[str, Any] | None, schedule: AccumulationSchedule, *, may_change: bool
) -> int:
    """K that the running cycle ends by; raise ResumeError unless it is as it was, or may change.

    A K that changed takes effect at the next boundary, which may be right here.
    """
    progress = contents.progress
    found, wanted = progress.accumulation_steps, schedule.at(progress.updates)
    before, now = None if recorded is None else recorded["steps"], schedule.recorded()
    if found == wanted and (before is None or now is None or before == now):
        return found
    if not may_change:
        raise ResumeError(
            f"the checkpoint {contents.checkpoint} was taken with accumulation_steps={words_of_steps(before, found)}, "
            f"this train cell has {words_of_steps(now, wanted)}. Build it with {words_of_steps(before, found)}, or "
            'pass on_k_change="next_cycle" to end the running cycle with the old ones and go on with the new ones.'
        )
    return wanted if progress.at_boundary else found


def words_of_steps(recorded: Sequence[Sequence[int]] | None, in_force: int) -> str:
    """How a user would write a schedule; a function only by what it says now."""
    if recorded is None:
        return f"{in_force} at this step"
    if len(recorded) == 1:
        return str(recorded[0][1])
    return "{" + ", ".join(f"{first}: {k}" for first, k in recorded) + "}"


def check_data(contents: Contents, position: Position | None, recorded: Mapping[str, Any] | None) -> None:
    """Raise ResumeError unless the data is what it was and the position is consistent with it."""
    if (position is None) != (recorded is None):
        raise ResumeError(
            f"{contents.checkpoint} was taken {'without' if recorded is None else 'with'} a dataset, and this training "
            f"is {'without' if position is None else 'with'} one: StateManager must get it both times, or never"
        )
    if position is None or recorded is None:
        return
    position.check(recorded)
    progress = contents.progress
    epoch, batch = position.placed(recorded, progress.batches_delivered)
    if (epoch, batch) != (progress.epoch, progress.batch):
        raise ResumeError(
            f"{contents.checkpoint} contradicts itself: epoch {progress.epoch}, batch {progress.batch}, "
            f"but {progress.batches_delivered} batches delivered, which is epoch {epoch}, batch {batch}"
        )


def prove_divisor(progress: Progress, divisor: str, counted: float) -> None:
    """Raise ResumeError unless ``divisor``, which divides the sums, counted the micro-steps of the cycle."""
    if counted != progress.micro_step:
        raise ResumeError(
            f"{divisor} counted {counted:g} micro-steps of the running cycle, but it has {progress.micro_step}. "
            "Something else changed the train cell's parameters (such as loading weights into the whole cell), so no "
            "resume could be exact."
        )


def prove_updates(progress: Progress, global_step: int | None, base: int | None) -> None:
    """Raise ResumeError unless the optimizer's own counter grew by the updates that were counted.

    An optimizer of the user's own may have the counter and never move it; then it proves nothing.
    """
    if global_step is None or base is None or global_step == base:
        return
    if global_step - base != progress.updates:
        raise ResumeError(
            f"the optimizer's global_step went from {base} to {global_step}, but {progress.updates} updates "
            "were counted. Something else called the optimizer or changed global_step, so no resume could be "
            "exact."
        )
