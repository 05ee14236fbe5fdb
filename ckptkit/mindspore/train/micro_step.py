"""Runs the first graph of a train cell: forward, backward, and adding the gradients to the accumulators.

Guarantees: the accumulators hold the unscaled gradient sum in float32, which the update divides by the divisor. Main
thread only.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import mindspore as ms
from mindspore import nn, ops

from ckptkit.mindspore.train import gradients

Normalize: TypeAlias = Literal["micro_batches", "samples", "weights"]


class MicroStep(nn.Cell):
    """Adds the gradients of a micro-batch's mean loss and counts the micro-batch as one.

    The gradients are added unchanged, without weights or a scale, so that K=1 has the bits of a plain step.
    """

    def __init__(self, network: nn.Cell, weights: Any, sums: ms.ParameterTuple, divisor: ms.Parameter) -> None:
        super().__init__(auto_prefix=False)
        self.objective = _Loss(network)
        self.weights = weights
        self.sums = sums
        self.divisor = divisor

    def construct(self, *inputs: Any) -> Any:
        """Return the micro-batch's loss."""
        loss, grads = self.differentiated(inputs)
        added = gradients.hyper_map(gradients.add, self.sums, grads), ops.assign_add(self.divisor, 1.0)
        return ops.depend(loss, added)

    def differentiated(self, inputs: tuple[Any, ...]) -> Any:
        """Return the loss and its gradients; nothing is added yet."""
        return ms.value_and_grad(self.objective, None, self.weights)(inputs)


class WeightedMicroStep(nn.Cell):
    """Adds the unscaled gradients of a scaled loss, counted by the micro-batch's weight."""

    def __init__(self, plain: MicroStep, normalize: Normalize, scale: ms.Parameter | None) -> None:
        super().__init__(auto_prefix=False)
        self.objective = _Objective(plain.objective.network, normalize, scale)
        self.weights = plain.weights
        self.sums = plain.sums
        self.divisor = plain.divisor
        self.scale = scale
        self.by_sample = normalize == "samples"

    def construct(self, *inputs: Any) -> Any:
        """Return the micro-batch's mean loss, unscaled."""
        (_, loss, weight), grads = self.differentiated(inputs)
        one = ops.ones((), ms.float32)
        factor = one
        if self.by_sample:
            # The gradients are of a mean over the micro-batch; times the number of samples they are of the sum.
            factor = one * (1.0 * inputs[0].shape[0])
            weight = factor
        scale = one if self.scale is None else self.scale
        sums = gradients.hyper_map(ops.partial(gradients.add_weighted, factor, scale), self.sums, grads)
        return ops.depend(loss, (sums, ops.assign_add(self.divisor, weight)))

    def differentiated(self, inputs: tuple[Any, ...]) -> Any:
        """Return the loss with what `_Objective` returns beside it, and the gradients; nothing is added yet."""
        return ms.value_and_grad(self.objective, None, self.weights)(inputs)


_BEFORE_ADDING = (MicroStep.differentiated.__code__, WeightedMicroStep.differentiated.__code__)


def is_before_adding(error: Exception) -> bool:
    """Return whether a micro-step that raised ``error`` has certainly not added gradients.

    That is so in the forward and backward pass in PYNATIVE, and while a graph is compiled. An error of a graph that
    runs may be that of a signal handler, which Python calls when the graph has ended.
    """
    found, caller = error.__traceback__, None
    while found is not None:
        code = found.tb_frame.f_code
        if caller is not None and found.tb_frame.f_back is not caller:
            return False  # from here on it is where the same object was raised before
        caller = found.tb_frame
        # `_GraphExecutor.compile` of mindspore.common.api; if it moves, such an error only costs a restore.
        is_compiled = code.co_name == "compile" and str(found.tb_frame.f_globals.get("__name__")).startswith(
            "mindspore."
        )
        if is_compiled or code in _BEFORE_ADDING:
            return True
        found = found.tb_next
    return False


class _Loss(nn.Cell):
    """Calls the network with the inputs by position; gradients are taken of this cell.

    GRAPH cannot differentiate a cell whose ``construct`` has ``*inputs`` or default arguments, hence the tuple.
    """

    def __init__(self, network: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.network = network

    def construct(self, inputs: tuple[Any, ...]) -> Any:
        return self.network(*inputs)


class _Objective(_Loss):
    """Returns the value to differentiate, then the micro-batch's mean loss and its weight."""

    def __init__(self, network: nn.Cell, normalize: Normalize, scale: ms.Parameter | None) -> None:
        super().__init__(network)
        self.weighted = normalize == "weights"
        self.scale = scale

    def construct(self, inputs: tuple[Any, ...]) -> Any:
        found = self.network(*inputs)
        weight = ops.ones((), ms.float32)
        objective = found
        loss = found
        if self.weighted:
            objective, weight = found
            weight = ops.reshape(ops.cast(weight, ms.float32), ())
            # A micro-batch without tokens has a summed loss of zero and a weight of zero.
            loss = objective / ops.cast(ops.select(weight == 0, ops.ones_like(weight), weight), objective.dtype)
        if self.scale is not None:
            objective = objective * ops.cast(self.scale, objective.dtype)
        return objective, ops.stop_gradient(loss), ops.stop_gradient(weight)
