"""The mark on cells whose parameters are half of a checkpoint, because reading it failed in the middle.

Guarantees: the mark lies on the cells themselves, so everybody who holds one of them sees it; until a restore has
succeeded, `refuse_half_restored` raises for each. Only an `AccumulationTrainCell` asks for itself, at every call:
nothing keeps other cells, or a network that is called directly, from running. Main thread only.
"""

from __future__ import annotations

from collections.abc import Iterable

from mindspore import nn

from ckptkit.errors import ResumeError

_MARK = "_ckptkit_half_restored"


def mark_half_restored(cells: Iterable[nn.Cell], checkpoint: str) -> None:
    """Say that from now on ``cells`` hold some of ``checkpoint`` and some of what was there before."""
    for cell in cells:
        vars(cell)[_MARK] = checkpoint  # past nn.Cell's own bookkeeping


def clear_half_restored(cells: Iterable[nn.Cell]) -> None:
    """Say that ``cells`` hold one state."""
    for cell in cells:
        vars(cell).pop(_MARK, None)


def half_restored_from(cells: Iterable[nn.Cell]) -> str | None:
    """The checkpoint that one of ``cells`` is marked with, or None."""
    return next((vars(cell)[_MARK] for cell in cells if _MARK in vars(cell)), None)


def refuse_half_restored(cells: Iterable[nn.Cell]) -> None:
    """Raise ResumeError if one of ``cells`` is marked; names the checkpoint."""
    for cell in cells:
        checkpoint = half_restored_from([cell])
        if checkpoint is not None:
            raise ResumeError(
                f"the parameters of this {type(cell).__name__} are half restored from {checkpoint}: that restore "
                "failed before its end. Restore a checkpoint; until that has succeeded, nothing can be trained or saved"
            )
