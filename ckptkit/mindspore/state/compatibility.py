"""Compares a checkpoint with a training before anything is changed, and its counters with each other.

Guarantees: after all checks passed, the checkpoint fits leaf by leaf and the run can continue exactly. A disagreement
raises and names what differs; nothing is guessed. Changes nothing. Main thread only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ckptkit.core.accumulation import AccumulationSchedule
from ckptkit.core.contents import Contents, TensorInfo
from ckptkit.core.placement import Box
from ckptkit.core.progress import Progress
from ckptkit.core.tensors import Leaf
from ckptkit.core.text import listed, some
from ckptkit.errors import ResumeError, StateMismatchError
from ckptkit.mindspore.data.resumable import Position
from ckptkit.mindspore.train.counters import CycleCounters

_NETWORK = "Build network and optimizer as they were"
_OPTIMIZER = "The weights fit, so build the optimizer as it was"
_RATES = (
    "Only learning rates differ: give the list that the run began with, and train the epochs that it is for. To train "
    "longer, begin a run with these weights (`ckptkit export`, `ckptkit import`); a rate that is a cell, such as "
    "nn.CosineDecayLR, is not stored and may change. Do so"
)


def is_rate(name: str) -> bool:
    """Return whether MindSpore's optimizers keep a constructor argument under ``name``: learning rate or momentum."""
    last = name.rpartition(".")[2]
    return last.startswith("learning_rate") or last == "momentum"


def difference(name: str, leaf: Leaf, stored: TensorInfo) -> str | None:
    """Return how a stored tensor differs from the leaf of that name, or None."""
    placement = leaf.spec.placement
    shape = placement.global_shape if isinstance(placement, Box) else leaf.shape
    if (leaf.dtype, shape) == (stored.dtype, stored.shape):
        return None
    return (
        f"{name}: the checkpoint has {stored.dtype} {list(stored.shape)}, this training has {leaf.dtype} {list(shape)}"
    )


def check_leaves(contents: Contents, expected: Mapping[str, Leaf]) -> None:
    """Raise StateMismatchError, naming the first leaves, unless the checkpoint holds exactly ``expected``."""
    stored = {name: one for name, one in contents.entries.items() if one.role != "state"}
    # Sorted by role (weights first) and place, so that the old and new name of a renamed parameter are adjacent.
    problems: list[tuple[bool, int, str, str]] = []
    for place, name in enumerate(sorted(expected.keys() - stored.keys())):
        problems.append((expected[name].role != "weights", place, f"missing in the checkpoint: {name}", name))
    for place, name in enumerate(sorted(stored.keys() - expected.keys())):
        problems.append((stored[name].role != "weights", place, f"not in this training: {name}", name))
    for name in sorted(expected.keys() & stored.keys()):
        problem = difference(name, expected[name], stored[name])
        if problem is not None:
            problems.append((expected[name].role != "weights", -1, problem, name))
    if problems:
        problems.sort()
        rates = all(name.rpartition(".")[2].startswith("learning_rate") for *_, name in problems)
        advice = _RATES if rates else _OPTIMIZER if problems[0][0] else _NETWORK
        raise StateMismatchError(
            f"the checkpoint {contents.checkpoint} does not fit this training: {len(problems)} of its tensors differ. "
            f"Nothing was changed. {advice}, or start under another root, such as "
            f'CheckpointCallback("NEW_ROOT"):{listed([text for *_, text, _ in problems])}'
        )


def check_stateful(given: Collection[str], stored: Collection[str]) -> None:
    """Raise StateMismatchError unless the given stateful objects are those that are stored."""
    missing, extra = sorted(set(given) - set(stored)), sorted(set(stored) - set(given))
    if missing or extra:
        raise StateMismatchError(
            "the stateful objects differ. Nothing was changed. "
            f"Given now but not in the checkpoint: {missing or 'none'}; in the checkpoint but not given: "
            f"{extra or 'none'}. Give the same ones as before, or start under another root."
        )


def check_same_training(contents: Contents, recorded: Mapping[str, Any] | None, mine: Mapping[str, Any] | None) -> None:
    """Raise ResumeError if the train cell accumulates in another way than the checkpoint's.

    ``recorded`` and ``mine`` describe the two ways; None for a cell that is not an `AccumulationTrainCell`.
    """
    if (recorded is None) != (mine is None):
        raise ResumeError(
            f"the checkpoint {contents.checkpoint} was taken {'without' if recorded is None else 'of'} an "
            f"AccumulationTrainCell, and this training is {'without' if mine is None else 'of'} one. Train with the "
            "same kind of cell, or start under another root."
        )
    if recorded is None or mine is None:
        return
    for option in mine.keys() & recorded.keys() - {"steps"}:
        if recorded[option] != mine[option]:
            raise ResumeError(
                f"the checkpoint {contents.checkpoint} was taken with {option}={recorded[option]!r}, this train cell "
                f"has {mine[option]!r}. Build it with {option}={recorded[option]!r}, or start under another root."
            )


def check_mode(contents: Contents, recorded: str | None, mine: str) -> None:
    """Raise ResumeError if the checkpoint records another execution mode than ``mine``."""
    if recorded not in (None, mine):
        raise ResumeError(
            f"the checkpoint {contents.checkpoint} was taken in {recorded}_MODE, this process is in {mine}_MODE, "
            f"which rounds differently. Call ms.set_context(mode=ms.{recorded}_MODE), or start under another root."
        )


def check_cycle(
    contents: Contents, recorded: Mapping[str, Any] | None, schedule: AccumulationSchedule, *, may_change: bool
) -> int:
    """Return K at which the running cycle ends; raise ResumeError if K or its schedule changed and may not.

    A changed K takes effect at the next boundary, which may be the current position.
    """
    progress = contents.progress
    found, wanted = progress.accumulation_steps, schedule.at(progress.updates)
    before, now = None if recorded is None else recorded["steps"], schedule.recorded()
    if found == wanted and (before is None or now is None or before == now):
        return found
    if not may_change:
        raise ResumeError(
            f"the checkpoint {contents.checkpoint} was taken with accumulation_steps={words_of_steps(before, found)}, "
            f"this train cell has {words_of_steps(now, wanted)}. "
            f"{_as_before(words_of_steps(before, found), schedule, is_function=before is None and now is None)}, or "
            'pass training=ckptkit.Training(on_k_change="next_cycle") to end the running cycle with the old ones and '
            "continue with the new ones."
        )
    return wanted if progress.at_boundary else found


def _as_before(steps: str, schedule: AccumulationSchedule, *, is_function: bool) -> str:
    """Return the advice to give ``schedule`` the K that it had, in the words of ``steps``."""
    if not is_function:
        return f"Build it with accumulation_steps={steps}"
    names = schedule.depends_on()
    return (
        "A function of K is asked before a restore sets anything, and must give the same K for the same number of "
        f"updates at each start{f'; this one also depends on {some(names)}' if names else ''}. Let it depend on the "
        "number of updates alone"
    )


def words_of_steps(recorded: Sequence[Sequence[int]] | None, in_force: int) -> str:
    """Return a schedule as a user would write it; for a function only its current K."""
    if recorded is None:
        return f"{in_force} at this step"
    if len(recorded) == 1:
        return str(recorded[0][1])
    return "{" + ", ".join(f"{first}: {k}" for first, k in recorded) + "}"


def check_data(contents: Contents, position: Position | None, recorded: Mapping[str, Any] | None) -> None:
    """Raise ResumeError unless the data is unchanged and the position is consistent with it."""
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


def prove_divisor(progress: Progress | CycleCounters, divisor: str, counted: float) -> None:
    """Raise ResumeError unless ``divisor``, which divides the sums, counted the micro-steps of the cycle."""
    if counted != progress.micro_step:
        raise ResumeError(
            f"{divisor} counted {counted:g} micro-steps of the running cycle, but it has {progress.micro_step}. "
            "Something else changed the train cell's parameters (such as loading weights into the whole cell), so no "
            "resume could be exact."
        )


def prove_updates(progress: Progress | CycleCounters, global_step: int | None, base: int | None) -> None:
    """Raise ResumeError unless the optimizer's own counter grew by the counted updates.

    A user's optimizer may have the counter and never change it; then the counter proves nothing.
    """
    if global_step is None or base is None or global_step == base:
        return
    if global_step - base != progress.updates:
        raise ResumeError(
            f"the optimizer's global_step went from {base} to {global_step}, but {progress.updates} updates "
            "were counted. Something else called the optimizer or changed global_step, so no resume could be "
            "exact."
        )
