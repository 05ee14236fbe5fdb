"""Takes the loss and gradient norm of a micro-step for the plots of ``ckptkit report``, and a model's metrics.

Guarantees: takes references and reads no value, so nothing waits for the device; an output that is not a single
number is left out. Main thread only.
"""

from __future__ import annotations

from typing import Any

import mindspore as ms
from mindspore.train import Model

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


def metrics_of(model: Model) -> list[object]:
    """Return the metrics with which a model evaluates.

    ``Model`` keeps them in a private attribute; `test_metric_that_keeps_state_is_named` fails if it moves.
    """
    return [*(getattr(model, "_metric_fns", None) or {}).values()]
