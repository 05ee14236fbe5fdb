"""Marks cells whose parameters are partly restored, because reading a checkpoint failed midway.

Guarantees: the mark is on the cells themselves, so every holder of a cell sees it. Until a restore has succeeded,
`refuse_half_restored` raises for each. Only an `AccumulationTrainCell` checks the mark itself, at every call; other
cells, or a network that is called directly, still run. Main thread only.
"""

from __future__ import annotations

from collections.abc import Iterable

from mindspore import nn

from ckptkit.errors import ResumeError

_MARK = "_ckptkit_half_restored"


def mark_half_restored(cells: Iterable[nn.Cell], checkpoint: str) -> None:
    """Mark that from now on ``cells`` hold partly the values of ``checkpoint`` and partly earlier ones."""
    for cell in cells:
        vars(cell)[_MARK] = checkpoint  # bypasses nn.Cell's attribute handling


def clear_half_restored(cells: Iterable[nn.Cell]) -> None:
    """Remove the mark: ``cells`` hold one state."""
    for cell in cells:
        vars(cell).pop(_MARK, None)


def half_restored_from(cells: Iterable[nn.Cell]) -> str | None:
    """Return the checkpoint that one of ``cells`` is marked with, or None."""
    return next((vars(cell)[_MARK] for cell in cells if _MARK in vars(cell)), None)


def refuse_half_restored(cells: Iterable[nn.Cell]) -> None:
    """Raise ResumeError if one of ``cells`` is marked; names the checkpoint."""
    for cell in cells:
        if (checkpoint := vars(cell).get(_MARK)) is not None:
            raise ResumeError(
                f"the parameters of this {type(cell).__name__} are half restored from {checkpoint}: that restore "
                "failed before its end. Restore a checkpoint; until that has succeeded, nothing can be trained or saved"
            )
