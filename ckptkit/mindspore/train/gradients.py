"""Runs the two graphs of a train cell: adding the gradients of a micro-batch, and the update that ends a cycle.

Guarantees: the accumulators hold the unscaled gradient sum in float32, which the update divides by the divisor. The
scale of a loss scaler and its counters are parameters, under MindSpore's own names. Main thread only.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import mindspore as ms
from mindspore import amp, nn, ops

# The graph compiler would unroll a Python loop over the gradients into nested calls, and fail from some 200 weights on.
hyper_map = ops.HyperMap()
add = ops.MultitypeFuncGraph("add")
add_weighted = ops.MultitypeFuncGraph("add_weighted")
divide = ops.MultitypeFuncGraph("divide")
multiply = ops.MultitypeFuncGraph("multiply")
sum_of_squares = ops.MultitypeFuncGraph("sum_of_squares")
count_nonfinite = ops.MultitypeFuncGraph("count_nonfinite")
cast_like = ops.MultitypeFuncGraph("cast_like")
zero = ops.MultitypeFuncGraph("zero")
LossScaler: TypeAlias = amp.LossScaler | nn.Cell  # DynamicLossScaleUpdateCell and FixedLossScaleUpdateCell
Normalize: TypeAlias = Literal["micro_batches", "samples", "weights"]


@add.register("Tensor", "Tensor")
def _add(total: ms.Parameter, grad: ms.Tensor) -> ms.Tensor:
    return ops.assign_add(total, ops.cast(grad, ms.float32))


@add_weighted.register("Tensor", "Tensor", "Tensor", "Tensor")
def _add_weighted(weight: ms.Tensor, scale: ms.Tensor, total: ms.Parameter, grad: ms.Tensor) -> ms.Tensor:
    # Do not multiply by the reciprocal: for the largest scales it is too small for a normal float32.
    return ops.assign_add(total, ops.cast(grad, ms.float32) / scale * weight)


@divide.register("Tensor", "Tensor")
def _divide(divisor: ms.Tensor, total: ms.Tensor) -> ms.Tensor:
    return total / divisor


@multiply.register("Tensor", "Tensor")
def _multiply(factor: ms.Tensor, grad: ms.Tensor) -> ms.Tensor:
    return grad * factor


@sum_of_squares.register("Tensor")
def _sum_of_squares(grad: ms.Tensor) -> ms.Tensor:
    return ops.reduce_sum(ops.square(grad))


@count_nonfinite.register("Tensor")
def _count_nonfinite(total: ms.Tensor) -> ms.Tensor:
    return ops.reduce_sum(ops.cast(ops.logical_not(ops.isfinite(total)), ms.float32))


@cast_like.register("Tensor", "Tensor")
def _cast_like(weight: ms.Tensor, grad: ms.Tensor) -> ms.Tensor:
    return ops.cast(grad, weight.dtype)


@zero.register("Tensor")
def _zero(total: ms.Parameter) -> ms.Tensor:
    return ops.assign(total, ops.zeros_like(total))


class LossScale(nn.Cell):
    def __init__(self, scaler: LossScaler) -> None:
        super().__init__(auto_prefix=False)
        if isinstance(scaler, amp.LossScaler) and isinstance(getattr(scaler, "scale_value", None), ms.Parameter):
            # The scaler is not a Cell, so MindSpore finds its parameters only as attributes of this one.
            self.scaler = scaler
            self.counters = ms.ParameterTuple(
                [value for value in vars(scaler).values() if isinstance(value, ms.Parameter)]
            )
            self.scale = scaler.scale_value
        elif isinstance(scaler, nn.DynamicLossScaleUpdateCell | nn.FixedLossScaleUpdateCell):
            self.scaler = scaler
            initial = ms.Tensor(float(scaler.get_loss_scale()), ms.float32)
            self.scale = ms.Parameter(initial, name="scale_sense", requires_grad=False)
        else:
            raise TypeError(
                "loss_scaler must be an amp.StaticLossScaler, amp.DynamicLossScaler, nn.DynamicLossScaleUpdateCell or "
                f"nn.FixedLossScaleUpdateCell, got {type(scaler).__name__}"
            )

    def described(self) -> str:
        """Return the scaler's type and those of its options that no parameter holds."""
        options = {name: getattr(self.scaler, name, None) for name in ("scale_factor", "scale_window")}
        said = [
            f"{name}={value}"
            for name, value in options.items()
            if value is not None and not isinstance(value, ms.Parameter)
        ]
        return f"{type(self.scaler).__name__}({', '.join(said)})"

    def adapt(self, *, finite: bool) -> None:
        """Tell the scaler whether the cycle's gradients were finite; it may change the scale."""
        if isinstance(self.scaler, nn.Cell):
            self.scaler(self.scale, ms.Tensor(not finite))
        else:
            self.scaler.adjust(ms.Tensor(finite))


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
        loss, grads = self.differentiated(inputs)
        added = hyper_map(add, self.sums, grads), ops.assign_add(self.divisor, 1.0)
        return ops.depend(loss, added)

    def differentiated(self, inputs: tuple[Any, ...]) -> Any:
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
        unit = ops.ones((), ms.float32)
        factor = unit
        if self.by_sample:
            # The gradients are of a mean over the micro-batch; times the number of samples they are of the sum.
            factor = unit * (1.0 * inputs[0].shape[0])
            weight = factor
        scale = unit if self.scale is None else self.scale
        sums = hyper_map(ops.partial(add_weighted, factor, scale), self.sums, grads)
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
    trace, caller = error.__traceback__, None
    while trace is not None:
        code = trace.tb_frame.f_code
        if caller is not None and trace.tb_frame.f_back is not caller:
            return False  # from here on it is where the same object was raised before
        caller = trace.tb_frame
        # `_GraphExecutor.compile` of mindspore.common.api; if it moves, such an error only costs a restore.
        is_compiled = code.co_name == "compile" and str(trace.tb_frame.f_globals.get("__name__")).startswith(
            "mindspore."
        )
        if is_compiled or code in _BEFORE_ADDING:
            return True
        trace = trace.tb_next
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
        output = self.network(*inputs)
        weight = ops.ones((), ms.float32)
        objective = output
        loss = output
        if self.weighted:
            objective, weight = output
            weight = ops.reshape(ops.cast(weight, ms.float32), ())
            # A micro-batch without tokens has a summed loss of zero and a weight of zero.
            loss = objective / ops.cast(ops.select(weight == 0, ops.ones_like(weight), weight), objective.dtype)
        if self.scale is not None:
            objective = objective * ops.cast(self.scale, objective.dtype)
        return objective, ops.stop_gradient(loss), ops.stop_gradient(weight)


class Update(nn.Cell):
    """Gives the averaged, clipped gradients to the optimizer and zeroes the accumulators.

    Returns the global norm of the averaged gradients before clipping, float32 ().
    """

    def __init__(
        self, optimizer: nn.Optimizer, sums: ms.ParameterTuple, divisor: ms.Parameter, clip_norm: float | None
    ) -> None:
        super().__init__(auto_prefix=False)
        self.optimizer = optimizer
        self.weights = optimizer.parameters
        self.sums = sums
        self.divisor = divisor
        self.clip_norm = clip_norm

    def construct(self) -> Any:
        # Zero only if `normalize` is "weights" and the cycle's total weight is zero; then the sums are zero too.
        divisor = ops.select(self.divisor == 0, ops.ones_like(self.divisor), self.divisor)
        grads = hyper_map(ops.partial(divide, divisor), self.sums)
        norm = ops.sqrt(ops.addn(hyper_map(sum_of_squares, grads)))
        if self.clip_norm is not None:
            # Exactly 1.0 if the norm is not larger, so that the gradients keep their bits.
            factor = self.clip_norm / ops.maximum(norm, self.clip_norm)
            grads = hyper_map(ops.partial(multiply, factor), grads)
        updated = self.optimizer(hyper_map(cast_like, self.weights, grads))
        zeroed = hyper_map(zero, self.sums), ops.assign(self.divisor, 0.0)
        return ops.depend(norm, (updated, zeroed))


class Clear(nn.Cell):
    def __init__(self, sums: ms.ParameterTuple, divisor: ms.Parameter) -> None:
        super().__init__(auto_prefix=False)
        self.sums = sums
        self.divisor = divisor

    def construct(self) -> Any:
        zeroed = hyper_map(zero, self.sums)
        return ops.depend(ops.assign(self.divisor, 0.0), zeroed)


class Finite(nn.Cell):
    """Returns whether every sum is finite, bool (); an overflow in any micro-step of the cycle stays in its sum."""

    def __init__(self, sums: ms.ParameterTuple) -> None:
        super().__init__(auto_prefix=False)
        self.sums = sums

    def construct(self) -> Any:
        return ops.addn(hyper_map(count_nonfinite, self.sums)) == 0
