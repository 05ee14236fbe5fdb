"""Defines `Training`, in which a script says what ckptkit cannot see in its code.

Guarantees: it is checked when it is made, and never changes. Any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from mindspore.train import Callback

from ckptkit.manager.options import refuse_unknown_choice
from ckptkit.mindspore.data.pipeline_position import Augmentation
from ckptkit.mindspore.train.counting import CycleAdapter

OnKChange: TypeAlias = Literal["refuse", "next_cycle"]


@dataclass(frozen=True, kw_only=True)
class Training:
    """Says what ckptkit cannot see in the code of a training.

    Attributes:
        augmentation: ``"stateless"`` declares that the user's own code in the dataset depends on its input only,
            so that a resume need not replay the batches before; the first batch is checked in any case.
        cycle: Reports K and the micro-step of a train cell other than `AccumulationTrainCell`; not needed if
            that cell has the two attributes of `CycleAdapter` itself.
        on_k_change: What a restore does if the checkpoint has other accumulation steps than the cell: ``"refuse"``, or
            ``"next_cycle"``, which ends the running cycle with the old ones and then continues with the new ones.
        read_only: Callbacks of your own, or classes of them, that never change a parameter, so that saves may read
            parameters in place while they run; for `CheckpointCallback`.
        ignore: State of the script that matters to nothing, neither stored nor named: paths as the log names them, with
            ``*`` for any text, or objects.

    Raises:
        ValueError: If an option has an unknown value.
    """

    augmentation: Augmentation = None
    cycle: CycleAdapter | None = None
    on_k_change: OnKChange = "refuse"
    read_only: Sequence[Callback | type[Callback]] = ()
    ignore: Sequence[Any] = ()

    def __post_init__(self) -> None:
        refuse_unknown_choice("on_k_change", self.on_k_change, OnKChange)
        if self.augmentation not in (None, "stateless"):
            raise ValueError(f'augmentation must be None or "stateless", got {self.augmentation!r}')
        object.__setattr__(self, "read_only", tuple(self.read_only))
        object.__setattr__(self, "ignore", tuple(self.ignore))
