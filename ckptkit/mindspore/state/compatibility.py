"""Compares a checkpoint with a training before anything is changed, and its counters with each other.

Guarantees: after all checks passed, the checkpoint fits leaf by leaf and the run can continue exactly. A disagreement
raises and names what differs; nothing is guessed. Changes nothing. Main thread only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ckptkit.core.contents import Contents, TensorInfo
from ckptkit.core.placement import Box
from ckptkit.core.tensors import Leaf
from ckptkit.core.text import listed
from ckptkit.errors import ResumeError, StateMismatchError
from ckptkit.mindspore.data.position import Position

_NETWORK = "Build network and optimizer as they were"
_OPTIMIZER = "The weights fit, so build the optimizer as it was"
_RATES = (
    "Only learning rates differ: give the list that the run began with, and train the epochs that it is for. To train "
    "longer, begin a run with these weights (`ckptkit export`, `ckptkit import`); a rate that is a cell, such as "
    "nn.CosineDecayLR, is not stored and may change. Do so"
)


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


def check_mode(contents: Contents, recorded: str | None, mine: str) -> None:
    """Raise ResumeError if the checkpoint records another execution mode than ``mine``."""
    if recorded not in (None, mine):
        raise ResumeError(
            f"the checkpoint {contents.checkpoint} was taken in {recorded}_MODE, this process is in {mine}_MODE, "
            f"which rounds differently. Call ms.set_context(mode=ms.{recorded}_MODE), or start under another root."
        )


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
