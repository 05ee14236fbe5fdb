"""Gradient accumulation as a training cell whose state can be stored after any micro-step.

Guarantees: the network's and the optimizer's parameters keep their names; whatever the next micro-step depends
on is a `Parameter` of the cell or one of its `CycleCounters`; GRAPH and PYNATIVE run the same code. With K=1 and
neither clipping nor a loss scaler the bits are those of `nn.TrainOneStepCell`, with two exceptions: a gradient of
-0.0 reaches the optimizer as +0.0, and for float16 weights in GRAPH the bits are those of a gradient graph and an
optimizer graph, because MindSpore skips roundings to float16 inside the one graph of `nn.TrainOneStepCell` (seen
with Adam, Momentum, RMSProp and SGD; running both of our steps as one graph gives other bits again).

How: a call runs one compiled graph (forward, backward, add to the accumulators), and on the K-th call of a cycle
a second one (divide, clip, optimizer, zero). The choice is made on the host in ``__call__``, so a step reads
nothing back from the device, but for one flag per cycle where there is a loss scaler. Between the two lies the fence of
checkpoints that still read the weights (`AccumulationTrainCell.guard`). In a job of many ranks (parallel_mode
``data_parallel``) a third adds the accumulators up over all ranks, divisor included, right before the flag is asked
for: in mid-cycle each rank holds the sums of its own micro-batches, and all take the same update. The price: GRAPH
skips ``__call__`` for a cell inside another graph, hence there this cell refuses to compile. Nested in PYNATIVE it
trains as if it were called directly.

Does not: cut the network or the optimizer over ranks (other parallel modes are refused), average what a forward pass
keeps in each rank, such as the statistics of BatchNorm, accept sparse gradients, or protect names against a wrapper
around a wrapper (create those with ``auto_prefix=False``). GRAPH executes asynchronously: a kernel's failure, that of
a reduction whose peer is gone included, may surface only at a later call or device read, when the counters have moved.

Threads: main thread only.
"""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal, TypeAlias, get_args

import mindspore as ms
from mindspore import nn, ops

from ckptkit.core.accumulation import AccumulationSchedule, AccumulationSteps
from ckptkit.mindspore.parameters.half_restored import clear_half_restored, refuse_half_restored
from ckptkit.mindspore.process_group import world
from ckptkit.mindspore.state.compatibility import some
from ckptkit.mindspore.train.counters import CycleCounters
from ckptkit.mindspore.train.loss_scale import LossScale, LossScaler
from ckptkit.mindspore.train.micro_step import MicroStep, Normalize, WeightedMicroStep
from ckptkit.mindspore.train.nesting import refuse_capture, refuse_graph, wrapper_name
from ckptkit.mindspore.train.reduce import Reduce, ranks_to_reduce_over
from ckptkit.mindspore.train.update import Clear, Finite, Update

Remainder: TypeAlias = Literal["carry", "flush", "drop"]


class AccumulationTrainCell(nn.Cell):
    """Trains ``network`` with one optimizer update per K micro-batches.

    A call is one micro-step: it returns the micro-batch's mean loss, unscaled, and adds the gradients to the
    accumulators. The K-th call of a cycle also divides the sums, clips, casts to the weights' dtypes, calls the
    optimizer and zeroes the accumulators. With many ranks (``mindspore.communication.init()``, then
    ``set_auto_parallel_context(parallel_mode="data_parallel")``, then this cell) it adds the sums up over all of them
    first, so that the mean is over the micro-batches, samples or weights of all ranks, and an overflow in one rank
    skips the update of all. Start the ranks with equal weights (`mindspore.set_seed`), and call each equally
    often.

    An exception in the forward or backward pass leaves counters and accumulators as they were. After one in the
    update the state is undefined: restore a checkpoint.

    Args:
        network: Returns the loss of one micro-batch, a scalar that is a mean over the micro-batch; with
            ``normalize="weights"`` a pair of scalars, the loss summed over the micro-batch and its weight.
        optimizer: Updates ``optimizer.parameters``; these are the weights that gradients are taken of.
        accumulation_steps: K, at least 1; or a schedule of it over the optimizer steps, a mapping such as
            ``{0: 1, 1000: 4}`` or a function, which must give the same answers at every start.
        clip_norm: Largest global norm of the averaged float32 gradients, or None. Gradients whose norm is not
            larger keep their bits. A norm that is not finite is not repaired: the update is zero or NaN.
        loss_scaler: Multiplies the loss for the backward pass, as `LossScale` takes it. Gradients that overflow in
            any micro-step of a cycle let its update be skipped and the accumulators be cleared; the scale adapts
            once per cycle. Without one, nothing looks for overflows.
        normalize: What the update divides the sum of the gradients by. ``"micro_batches"``: their number.
            ``"samples"``: the samples, counted by the first input's first dimension, for micro-batches of unequal
            size. ``"weights"``: the weights that the network returned, such as token counts; the mean over all
            tokens of the cycle instead of a mean of means. A cycle without any weight has zero gradients.
        remainder: What `end_epoch` does with a cycle that is not complete. ``"carry"``: it goes on into the next
            epoch; what is left at the very end stays in the accumulators, where checkpoints store it, not applied.
            ``"flush"``: an update with what is there, averaged over what is there. ``"drop"``: the accumulators are
            cleared without an update.

    Raises:
        TypeError: If ``network`` is not an `nn.Cell` or ``optimizer`` not an `nn.Optimizer`, or the scaler unknown.
        ValueError: If another argument is out of range, if two parameters have one name, or if the ranks of this job
            would train apart.
        RuntimeError: When compiled into another cell's or function's graph (see the module's docstring).
    """

    def __init__(
        self,
        network: nn.Cell,
        optimizer: nn.Optimizer,
        accumulation_steps: AccumulationSteps,
        *,
        clip_norm: float | None = None,
        loss_scaler: LossScaler | None = None,
        normalize: Normalize = "micro_batches",
        remainder: Remainder = "carry",
    ) -> None:
        _check_arguments(network, optimizer, clip_norm, normalize, remainder)
        self._schedule = AccumulationSchedule(accumulation_steps)
        super().__init__(auto_prefix=False)
        self.network = network
        self.optimizer = optimizer
        self.normalize = normalize
        self.remainder = remainder
        self.clip_norm = None if clip_norm is None else float(clip_norm)
        self.loss_scale = LossScale(loss_scaler) if loss_scaler is not None else None
        prefix = _prefix_beside(optimizer)
        sums = ms.ParameterTuple([_zeros(f"{prefix}{w.name}", w.shape) for w in optimizer.parameters])
        divisor = _zeros(f"{prefix}divisor", ())
        self._accumulators = (*sums, divisor)
        self._micro = MicroStep(network, optimizer.parameters, sums, divisor)
        if loss_scaler is not None or normalize != "micro_batches":
            scale = self.loss_scale.scale if self.loss_scale is not None else None
            self._micro = WeightedMicroStep(self._micro, normalize, scale)
        self._update = Update(optimizer, sums, divisor, clip_norm)
        self._clear = Clear(sums, divisor)
        self._ranks = ranks_to_reduce_over()
        self._reduce = Reduce(self._accumulators) if self._ranks > 1 else None
        self._finite = Finite(sums)
        self._counters = CycleCounters(self._schedule.at(0))
        self._updated = False
        self._last_of_epoch = False
        self._norm: ms.Tensor | None = None
        self._fences: list[Callable[[], None]] = []
        self._watch: Callable[[], Callable[[], None]] | None = None
        _check_names_unique(self)

    @property
    def accumulation_steps(self) -> int:
        """K in force for the running cycle."""
        return self._counters.accumulation_steps

    @property
    def schedule(self) -> AccumulationSchedule:
        """K of the cycles to come."""
        return self._schedule

    @property
    def counters(self) -> CycleCounters:
        """Where the cell stands after the last call that returned."""
        return self._counters

    @property
    def updated(self) -> bool:
        """Whether the last call, or `end_epoch` after it, called the optimizer."""
        return self._updated

    @property
    def gradient_norm(self) -> ms.Tensor | None:
        """Global norm of the averaged gradients of the last update before clipping, float32 ().

        None before the first update of this process. Reading its value waits for the device; this does not.
        """
        return self._norm

    @property
    def accumulators(self) -> tuple[ms.Parameter, ...]:
        """``accum.<weight>`` of each weight (float32, its shape), then ``accum.divisor`` (float32, ()).

        Beside an optimizer that calls its own state so, the prefix is ``grad_accum.``.
        """
        return self._accumulators

    def load_counters(self, counters: CycleCounters, schedule: AccumulationSchedule | None = None) -> None:
        """Continue from ``counters``, once the parameters they belong to have been restored.

        The running cycle ends by the K that they name; the schedule decides again at the next one, or ``schedule``
        from now on, where it is what another number of ranks made of that one.
        """
        if schedule is not None:
            self._schedule = schedule
        self._counters = counters
        self._updated = False
        self._last_of_epoch = False
        clear_half_restored([self])

    def __call__(self, *inputs: Any) -> Any:
        """Run one micro-step over one micro-batch and return its loss, unscaled.

        Raises:
            ResumeError: If a restore failed after it had changed some of the parameters, and none succeeded since.
        """
        refuse_capture()
        refuse_half_restored([self])
        self._refuse_another_world()
        # MindSpore caches graphs by phase, not by the training flag: without this a graph compiled before
        # set_train() would be kept after it, with BatchNorm in inference mode.
        self._micro.phase = "train" if self.network.training else "predict"
        loss = self._micro(*inputs) if self._watch is None else self._watched(*inputs)
        self._updated = False
        if self._counters.ends_cycle:
            self._end_cycle(self._counters.micro_steps + 1)
        else:
            self._counters = self._counters.after_micro_step()
        if self._last_of_epoch:
            self.expect_epoch_end(False)
            self.end_epoch()
        return loss

    def guard(self, fence: Callable[[], None]) -> None:
        """Call ``fence`` once, right before the next update: between the micro-step's graph and the update's."""
        if fence not in self._fences:
            self._fences.append(fence)

    def fence(self) -> None:
        """Do now what was asked for by `guard`; call before anything else changes a parameter of the optimizer."""
        while self._fences:
            self._fences[-1]()  # if it raises, it is still there for the next call
            self._fences.pop()

    def watch(self, begin: Callable[[], Callable[[], None]]) -> None:
        """Call ``begin`` before the next forward and backward pass, and what it returned right after it."""
        self._watch = begin

    def end_epoch(self) -> None:
        """End an epoch: a cycle that is not complete is carried on, flushed or dropped, as ``remainder`` says.

        `CheckpointCallback` calls it, and `ckptkit.data.resumable` brings it about; any other loop of one's own does
        after the last micro-step of each epoch and before the save there. At a boundary it does nothing.

        Raises:
            ResumeError: As a call.
        """
        refuse_half_restored([self])
        if self.remainder == "carry" or self._counters.micro_step == 0:
            return
        if self.remainder == "flush":
            self._end_cycle(self._counters.micro_steps)
        else:
            self._clear()
            self._begin_cycle(self._counters.micro_steps, updated=False)

    def expect_epoch_end(self, last: bool = True) -> None:
        """Say beforehand whether an epoch ends with the next call, which then does `end_epoch` itself.

        `ckptkit.data.resumable` says it of every batch.
        """
        self._last_of_epoch = last

    def _refuse_another_world(self) -> None:
        if (ranks := world().size) != self._ranks:
            raise ValueError(
                f"this cell was made before mindspore.communication.init(), for {self._ranks} rank, not {ranks}. "
                "Make it after"
            )

    def _watched(self, *inputs: Any) -> Any:
        assert self._watch is not None  # noqa: S101 - asked by the caller
        self.fence()  # nobody knows yet whether this forward pass changes what it should not
        end = self._watch()
        loss = self._micro(*inputs)
        self._watch = None
        end()
        return loss

    def _end_cycle(self, micro_steps: int) -> None:
        if self._reduce is not None:
            self._reduce()
        finite = True
        if self.loss_scale is not None:
            finite = bool(self._finite().asnumpy())
            self.loss_scale.adapt(finite=finite)
        if finite:
            self.fence()
            self._norm = self._update()
        else:
            self._clear()
        self._begin_cycle(micro_steps, updated=finite)

    def _begin_cycle(self, micro_steps: int, *, updated: bool) -> None:
        self._updated = updated
        following = self._schedule.at(self._counters.updates + int(updated))
        self._counters = self._counters.after_cycle(micro_steps, updated=updated, accumulation_steps=following)

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


def _zeros(name: str, shape: tuple[int, ...]) -> ms.Parameter:
    return ms.Parameter(ops.zeros(shape, ms.float32), name=name, requires_grad=False)


def _prefix_beside(optimizer: nn.Optimizer) -> str:
    # nn.SGD, nn.Adagrad and nn.Adadelta call their own state accum.<weight>.
    weights = {id(one) for one in optimizer.parameters}
    taken = any(one.name.startswith("accum.") for one in optimizer.get_parameters() if id(one) not in weights)
    return "grad_accum." if taken else "accum."


def _check_arguments(
    network: object, optimizer: object, clip_norm: object, normalize: object, remainder: object
) -> None:
    if not isinstance(network, nn.Cell):
        raise TypeError(f"network must be an nn.Cell that returns the loss, got {type(network).__name__}")
    if not isinstance(optimizer, nn.Optimizer):
        raise TypeError(f"optimizer must be an nn.Optimizer, got {type(optimizer).__name__}")
    number = isinstance(clip_norm, (int, float)) and not isinstance(clip_norm, bool)
    if clip_norm is not None and not (number and 0 < clip_norm < math.inf):  # type: ignore[operator]
        raise ValueError(f"clip_norm must be None or a finite number above 0, got {clip_norm!r}")
    for name, value, known in (("normalize", normalize, Normalize), ("remainder", remainder, Remainder)):
        if value not in get_args(known):
            raise ValueError(f"{name} must be one of {', '.join(map(repr, get_args(known)))}, got {value!r}")


def _check_names_unique(cell: nn.Cell) -> None:
    # MindSpore would rename every parameter of the cell at the first call instead.
    names = Counter(parameter.name for parameter in cell.get_parameters())
    twice = sorted(name for name, count in names.items() if count > 1)
    if twice:
        raise ValueError(f"parameter names must differ, these are used more than once: {some(twice)}")
