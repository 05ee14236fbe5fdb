"""Takes the loss and the gradient norm of a micro-step under ``Model.train`` for the plots of ``ckptkit report``.

Guarantees: takes references and reads no value, so nothing waits for the device; an output that is not a single
number is left out. Main thread only.
"""

from __future__ import annotations

from typing import Any

import mindspore as ms

from ckptkit.mindspore.train.cell import AccumulationTrainCell


def loss_of(outputs: Any) -> dict[str, ms.Tensor]:
    """Return the loss among a train cell's outputs: the first output, as in MindSpore's own callbacks."""
    first = outputs[0] if isinstance(outputs, tuple | list) and outputs else outputs
    return {"loss": first} if isinstance(first, ms.Tensor) and first.size == 1 else {}


def norm_of(cell: Any) -> dict[str, ms.Tensor]:
    """Return the norm of the gradients, if the last micro-step called the optimizer of an `AccumulationTrainCell`."""
    if not isinstance(cell, AccumulationTrainCell) or not cell.updated or cell.gradient_norm is None:
        return {}
    return {"gradient_norm": cell.gradient_norm}
