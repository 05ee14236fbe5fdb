"""Gradient accumulation as a training cell whose state can be stored after any micro-step.

Guarantees: the network's and the optimizer's parameters keep their names; whatever the next micro-step depends
on is a `Parameter` of the cell or one of its `CycleCounters`; GRAPH and PYNATIVE run the same code. With K=1 and
no clipping the bits are those of `nn.TrainOneStepCell`, with two exceptions: a gradient of -0.0 reaches the
optimizer as +0.0, and for float16 weights in GRAPH the bits are those of a gradient graph and an optimizer
graph, because MindSpore skips roundings to float16 inside the one graph of `nn.TrainOneStepCell` (seen with Adam,
Momentum, RMSProp and SGD; running both of our steps as one graph gives other bits again).

How: a call runs one compiled graph (forward, backward, add to the accumulators), and on the K-th call of a cycle
a second one (divide, clip, optimizer, zero). The choice is made on the host in ``__call__``, so a step reads
nothing back from the device. The price: GRAPH skips ``__call__`` for a cell inside another graph, hence there
this cell refuses to compile. Nested in PYNATIVE it trains as if it were called directly.

Does not: scale the loss, reduce gradients across devices, accept sparse gradients, or protect names against a
wrapper around a wrapper (create those with ``auto_prefix=False``). GRAPH executes asynchronously: a kernel's
failure may surface only at a later call or device read, when the counters have moved.

Threads: main thread only.
"""

from __future__ import annotations

import inspect
import math
from collections import Counter
from typing import Any, Literal

import mindspore as ms
from mindspore import nn, ops

from ckptkit.mindspore.cycle import CycleCounters
from ckptkit.mindspore.nesting import refuse_capture, refuse_graph, wrapper_name


class AccumulationTrainCell(nn.Cell):
    """Trains ``network`` with one optimizer update per K micro-batches.

    A call is one micro-step: it returns the micro-batch's loss as the network returned it and adds the gradients
    to the accumulators. The K-th call of a cycle also divides the sums by the number of micro-steps, clips, casts
    to the weights' dtypes, calls the optimizer and zeroes the accumulators.

    An exception in the forward or backward pass leaves counters and accumulators as they were. After one in the
    update the state is undefined: restore a checkpoint.

    Args:
        network: Returns the loss of one micro-batch, a scalar that is a mean over the micro-batch.
        optimizer: Updates ``optimizer.parameters``; these are the weights that gradients are taken of.
        accumulation_steps: K, at least 1.
        clip_norm: Largest global norm of the averaged float32 gradients, or None. Gradients whose norm is not
            larger keep their bits. A norm that is not finite is not repaired: the update is zero or NaN.
        remainder: Only ``"carry"``: gradients that are left when an epoch or the run ends go on into the next
            epoch; at the very end they stay in the accumulators, where checkpoints store them, not applied.

    Raises:
        TypeError: If ``network`` is not an `nn.Cell` or ``optimizer`` not an `nn.Optimizer`.
        ValueError: If another argument is out of range, or if two parameters have one name.
        RuntimeError: When compiled into another cell's or function's graph (see the module's docstring).
    """

    def __init__(
        self,
        network: nn.Cell,
        optimizer: nn.Optimizer,
        accumulation_steps: int,
        *,
        clip_norm: float | None = None,
        remainder: Literal["carry"] = "carry",
    ) -> None:
        _check_arguments(network, optimizer, accumulation_steps, clip_norm, remainder)
        super().__init__(auto_prefix=False)
        self.network = network
        self.optimizer = optimizer
        prefix = _prefix_beside(optimizer)
        self._micro = _MicroStep(
            network,
            weights=optimizer.parameters,
            sums=ms.ParameterTuple([_zeros(f"{prefix}{w.name}", w.shape) for w in optimizer.parameters]),
            divisor=_zeros(f"{prefix}divisor", ()),
        )
        self._update = _Update(optimizer, self._micro, clip_norm)
        self._counters = CycleCounters(accumulation_steps)
        _check_names_unique(self)

    @property
    def accumulation_steps(self) -> int:
        """K in force for the running cycle."""
        return self._counters.accumulation_steps

    @property
    def counters(self) -> CycleCounters:
        """Where the cell stands after the last call that returned."""
        return self._counters

    @property
    def accumulators(self) -> tuple[ms.Parameter, ...]:
        """``accum.<weight>`` of each weight (float32, its shape), then ``accum.divisor`` (float32, ()).

        Beside an optimizer that calls its own state so, the prefix is ``grad_accum.``.
        """
        return (*self._micro.sums, self._micro.divisor)

    def load_counters(self, counters: CycleCounters) -> None:
        """Continue from ``counters``, once the parameters they belong to have been restored.

        Raises:
            ValueError: If they were taken with other accumulation steps than this cell's.
        """
        if counters.accumulation_steps != self.accumulation_steps:
            raise ValueError(
                f"the counters were taken with accumulation_steps={counters.accumulation_steps}, this cell has "
                f"{self.accumulation_steps}; build it with accumulation_steps={counters.accumulation_steps}"
            )
        self._counters = counters

    def __call__(self, *inputs: Any) -> Any:
        """Run one micro-step over one micro-batch and return its loss, unscaled."""
        refuse_capture()
        # MindSpore caches graphs by phase, not by the training flag: without this a graph compiled before
        # set_train() would be kept after it, with BatchNorm in inference mode.
        self._micro.phase = "train" if self.network.training else "predict"
        loss = self._micro(*inputs)
        if self._counters.ends_cycle:
            self._update()
        self._counters = self._counters.after_micro_step()
        return loss

    def set_grad(self, requires_grad: bool = True) -> nn.Cell:
        """Refuse to be differentiated, as `nn.TrainOneStepCell` asks of what it wraps.

        Raises:
            RuntimeError: If ``requires_grad``.
        """
        if requires_grad:
            caller = inspect.currentframe()
            raise RuntimeError(
                f"AccumulationTrainCell cannot be differentiated by {wrapper_name(caller and caller.f_back)}: it "
                "takes the gradients and applies the updates itself. Give it to ms.Model without an optimizer."
            )
        return super().set_grad(False)

    def construct(self, *inputs: Any) -> Any:
        """Refuse: only a graph compiled around this cell gets here, and it would skip ``__call__``."""
        return refuse_graph()

    def update_parameters_name(self, prefix: str = "", recurse: bool = True) -> None:
        """Keep all names: checkpoints are keyed by them, and becoming an attribute of a wrapper calls this."""


class _MicroStep(nn.Cell):
    """Forward, backward, and the gradients added to the sums."""

    def __init__(self, network: nn.Cell, weights: Any, sums: ms.ParameterTuple, divisor: ms.Parameter) -> None:
        super().__init__(auto_prefix=False)
        self.network = network
        self.weights = weights
        self.sums = sums
        self.divisor = divisor

    def construct(self, *inputs: Any) -> Any:
        loss, grads = ms.value_and_grad(self.network, None, self.weights)(*inputs)
        added = _map(_add, self.sums, grads), ops.assign_add(self.divisor, 1.0)
        return ops.depend(loss, added)


class _Update(nn.Cell):
    """The averaged, clipped gradients given to the optimizer, and the accumulators zeroed."""

    def __init__(self, optimizer: nn.Optimizer, micro: _MicroStep, clip_norm: float | None) -> None:
        super().__init__(auto_prefix=False)
        self.optimizer = optimizer
        self.weights = micro.weights
        self.sums = micro.sums
        self.divisor = micro.divisor
        self.clip_norm = clip_norm

    def construct(self) -> Any:
        grads = _map(ops.partial(_divide, self.divisor), self.sums)
        if self.clip_norm is not None:
            norm = ops.sqrt(ops.addn(_map(_sum_of_squares, grads)))
            # Exactly 1.0 when the norm is not larger, so that the gradients keep their bits.
            grads = _map(ops.partial(_scale, self.clip_norm / ops.maximum(norm, self.clip_norm)), grads)
        updated = self.optimizer(_map(_cast_like, self.weights, grads))
        return ops.depend(updated, (_map(_zero, self.sums), ops.assign(self.divisor, 0.0)))


# A Python loop is unrolled call in call by the graph compiler, which fails from some 200 weights on.
_map = ops.HyperMap()
_add = ops.MultitypeFuncGraph("add")
_divide = ops.MultitypeFuncGraph("divide")
_scale = ops.MultitypeFuncGraph("scale")
_sum_of_squares = ops.MultitypeFuncGraph("sum_of_squares")
_cast_like = ops.MultitypeFuncGraph("cast_like")
_zero = ops.MultitypeFuncGraph("zero")


@_add.register("Tensor", "Tensor")
def _add_tensors(total: ms.Parameter, grad: ms.Tensor) -> ms.Tensor:
    return ops.assign_add(total, ops.cast(grad, ms.float32))


@_divide.register("Tensor", "Tensor")
def _divide_tensor(divisor: ms.Tensor, total: ms.Tensor) -> ms.Tensor:
    return total / divisor


@_scale.register("Tensor", "Tensor")
def _scale_tensor(factor: ms.Tensor, grad: ms.Tensor) -> ms.Tensor:
    return grad * factor


@_sum_of_squares.register("Tensor")
def _sum_of_squares_of_tensor(grad: ms.Tensor) -> ms.Tensor:
    return ops.reduce_sum(ops.square(grad))


@_cast_like.register("Tensor", "Tensor")
def _cast_tensor_like(weight: ms.Tensor, grad: ms.Tensor) -> ms.Tensor:
    return ops.cast(grad, weight.dtype)


@_zero.register("Tensor")
def _zero_tensor(total: ms.Parameter) -> ms.Tensor:
    return ops.assign(total, ops.zeros_like(total))


def _zeros(name: str, shape: tuple[int, ...]) -> ms.Parameter:
    return ms.Parameter(ops.zeros(shape, ms.float32), name=name, requires_grad=False)


def _prefix_beside(optimizer: nn.Optimizer) -> str:
    # nn.SGD, nn.Adagrad and nn.Adadelta call their own state accum.<weight>.
    weights = {id(one) for one in optimizer.parameters}
    taken = any(one.name.startswith("accum.") for one in optimizer.get_parameters() if id(one) not in weights)
    return "grad_accum." if taken else "accum."


def _check_arguments(network: object, optimizer: object, k: object, clip_norm: object, remainder: object) -> None:
    if not isinstance(network, nn.Cell):
        raise TypeError(f"network must be an nn.Cell that returns the loss, got {type(network).__name__}")
    if not isinstance(optimizer, nn.Optimizer):
        raise TypeError(f"optimizer must be an nn.Optimizer, got {type(optimizer).__name__}")
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise ValueError(f"accumulation_steps must be an int of at least 1, got {k!r}")
    number = isinstance(clip_norm, (int, float)) and not isinstance(clip_norm, bool)
    if clip_norm is not None and not (number and 0 < clip_norm < math.inf):  # type: ignore[operator]
        raise ValueError(f"clip_norm must be None or a finite number above 0, got {clip_norm!r}")
    if remainder != "carry":
        raise ValueError(f'remainder must be "carry", got {remainder!r}')
    parallel = ms.get_auto_parallel_context("parallel_mode")
    if parallel != "stand_alone":
        raise ValueError(f"several ranks are not supported yet (parallel_mode={parallel!r}): each would train apart")


def _check_names_unique(cell: nn.Cell) -> None:
    # MindSpore would rename every parameter of the cell at the first call instead.
    names = Counter(parameter.name for parameter in cell.get_parameters())
    twice = sorted(name for name, count in names.items() if count > 1)
    if twice:
        raise ValueError(f"parameter names must differ, these are used more than once: {', '.join(twice)}")
