"""Accumulates gradients in a training cell whose state can be stored after any micro-step.

Guarantees: the network's and the optimizer's parameters keep their names. All that the next micro-step depends on is
a `Parameter` of the cell or in its `CycleCounters`. GRAPH and PYNATIVE run the same code. With K=1 and neither
clipping nor a loss scaler the bits are those of `nn.TrainOneStepCell`, with two exceptions: a gradient of -0.0
reaches the optimizer as +0.0, and for float16 weights in GRAPH the bits are those of a gradient graph and an
optimizer graph, because MindSpore skips roundings to float16 inside the one graph of `nn.TrainOneStepCell` (seen with
Adam, Momentum, RMSProp and SGD; running both of our steps as one graph gives other bits again).

A call runs one compiled graph (forward, backward, add to the accumulators). The K-th call of a cycle also runs a
second one (divide, clip, optimizer, zero). ``__call__`` chooses on the host, so a step reads nothing back from the
device, except one flag per cycle if there is a loss scaler. Between the two graphs comes the fence of checkpoints that
still read the weights (`AccumulationTrainCell.guard`). In a job of many ranks (parallel_mode ``data_parallel``) a
third graph sums the accumulators, divisor included, over all ranks right before the flag is read: within a cycle each
rank holds the sums of its own micro-batches, and all apply the same update. A graph around this cell would skip
``__call__``, so the cell refuses to compile there. Nested in PYNATIVE it trains as if it were called directly.

Does not: split the network or the optimizer over ranks (other parallel modes are refused), average what a forward
pass keeps in each rank (such as the statistics of BatchNorm), accept sparse gradients, or protect names against a
wrapper around a wrapper (create those with ``auto_prefix=False``). GRAPH executes asynchronously: the failure of a
kernel, or of a reduction whose peer is gone, may surface only at a later call or device read, after the counters
have moved.

Threads: main thread only.
"""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any, Literal, TypeAlias, get_args

import mindspore as ms
from mindspore import nn, ops
from mindspore.experimental.optim import Optimizer as ExperimentalOptimizer  # also the base of mindspore.mint.optim's

from ckptkit.core.accumulation import AccumulationSchedule, AccumulationSteps
from ckptkit.core.active_calls import frames_from
from ckptkit.core.text import some
from ckptkit.errors import ResumeError
from ckptkit.mindspore.process_group import world
from ckptkit.mindspore.train.call_hooks import Fences
from ckptkit.mindspore.train.gradients import (
    Clear,
    Finite,
    LossScale,
    LossScaler,
    MicroStep,
    Normalize,
    Update,
    WeightedMicroStep,
    is_before_adding,
)
from ckptkit.mindspore.train.reduce import Reduce, ranks_to_reduce_over

Remainder: TypeAlias = Literal["carry", "flush", "drop"]
_Interrupted: TypeAlias = Literal["before adding", "anywhere"]
_REFUSAL = (
    "AccumulationTrainCell was compiled into the graph of {}. Graphs skip the cell's __call__, which counts the "
    "micro-steps and applies the update. Give the AccumulationTrainCell itself to ms.Model (without optimizer or "
    "loss_fn, dataset_sink_mode=False), or call it from plain Python, outside of any other cell in GRAPH mode and "
    "of any @ms.jit function."
)
_CAPTURING_FILES = ("jit_trace.py", "pijit_context.py")
_MARK = "_ckptkit_half_restored"
OPTIMIZERS = (nn.Optimizer, ExperimentalOptimizer)


@dataclass(frozen=True, slots=True)
class CycleCounters:
    """Holds the position of an `AccumulationTrainCell` between two calls; a `Progress` checks the same numbers."""

    accumulation_steps: int
    micro_step: int = 0
    cycles: int = 0
    updates: int = 0
    micro_steps: int = 0
    first_micro_step: int = 0

    @property
    def ends_cycle(self) -> bool:
        return self.micro_step + 1 == self.accumulation_steps

    def after_micro_step(self) -> CycleCounters:
        """Return the counters after the next micro-step, if it does not end the cycle."""
        return replace(self, micro_step=self.micro_step + 1, micro_steps=self.micro_steps + 1)

    def after_cycle(self, micro_steps: int, *, updated: bool, accumulation_steps: int) -> CycleCounters:
        return CycleCounters(
            accumulation_steps=accumulation_steps,
            cycles=self.cycles + 1,
            updates=self.updates + int(updated),
            micro_steps=micro_steps,
            first_micro_step=micro_steps,
        )


class AccumulationTrainCell(nn.Cell):
    """Trains ``network`` with one optimizer update per K micro-batches.

    A call is one micro-step: it returns the micro-batch's mean loss, unscaled, and adds the gradients to the
    accumulators. The K-th call of a cycle also divides the sums, clips, casts to the weights' dtypes, calls the
    optimizer and zeroes the accumulators. With many ranks (``mindspore.communication.init()``, then
    ``set_auto_parallel_context(parallel_mode="data_parallel")``, then this cell) it first sums the accumulators over
    all ranks, so that the mean is over the micro-batches, samples or weights of all ranks, and an overflow in one rank
    skips the update in all. Start the ranks with equal weights (`mindspore.set_seed`), and call the cell equally often
    in each.

    An exception in the forward or backward pass in PYNATIVE, or while a graph is compiled, leaves counters and
    accumulators unchanged, so that the next call may follow. After Ctrl-C, or any other exception in a call, parameters
    may have the micro-batch, or a part of the update, without the counters: calls and saves are refused until a
    checkpoint is restored.

    Args:
        network: Returns the loss of one micro-batch, a scalar that is a mean over the micro-batch; with
            ``normalize="weights"`` a pair of scalars, the loss summed over the micro-batch and its weight.
        optimizer: Updates ``optimizer.parameters``; gradients are computed for these weights.
        accumulation_steps: K, at least 1; or a schedule of K over the optimizer steps, either a mapping such as
            ``{0: 1, 1000: 4}`` or a function, which must give the same values at every start.
        clip_norm: Largest global norm of the averaged float32 gradients, or None. Gradients whose norm is not
            larger keep their bits. A norm that is not finite is not repaired: the update is zero or NaN.
        loss_scaler: Multiplies the loss for the backward pass; `LossScale` lists the accepted types. If gradients
            overflow in any micro-step of a cycle, its update is skipped and the accumulators are cleared. The scale
            adapts once per cycle. Without a loss scaler, overflows are not detected.
        normalize: What the update divides the sum of the gradients by. ``"micro_batches"``: their number.
            ``"samples"``: the samples, counted by the first input's first dimension, for micro-batches of unequal
            size. ``"weights"``: the weights that the network returned, such as token counts; this gives the mean over
            all tokens of the cycle instead of a mean of means. A cycle with zero total weight has zero gradients.
        remainder: What `end_epoch` does with an incomplete cycle. ``"carry"``: the cycle continues in the next
            epoch; a remainder at the end of training stays in the accumulators, where checkpoints store it, and is not
            applied. ``"flush"``: updates with the micro-batches so far, averaged over them. ``"drop"``: clears the
            accumulators without an update.

    Raises:
        TypeError: If ``network`` is not an `nn.Cell` or ``optimizer`` not an `nn.Optimizer`, or the scaler unknown.
        ValueError: If another argument is out of range, if two parameters have one name, or if the ranks of this job
            would train independently.
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
        self._updated = self._last_of_epoch = False
        self._interrupted: _Interrupted | None = None
        self._norm: ms.Tensor | None = None
        self._fences = Fences()
        self._watch: Callable[[], Callable[[], None]] | None = None
        _check_names_unique(self)

    @property
    def accumulation_steps(self) -> int:
        """K of the running cycle."""
        return self._counters.accumulation_steps

    @property
    def schedule(self) -> AccumulationSchedule:
        """Schedule that gives K of the cycles to come."""
        return self._schedule

    @property
    def counters(self) -> CycleCounters:
        """Counters after the last call that returned."""
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

        The prefix is ``grad_accum.`` if the optimizer uses ``accum.`` for its own state.
        """
        return self._accumulators

    def load_counters(self, counters: CycleCounters, schedule: AccumulationSchedule | None = None) -> None:
        """Continue from ``counters``, once the parameters they belong to have been restored.

        The running cycle ends at the K in ``counters``; the schedule decides K again from the next cycle on.
        ``schedule``, if given, replaces it from now on: the schedule adapted to another number of ranks.
        """
        if schedule is not None:
            self._schedule = schedule
        self._counters = counters
        self._updated = self._last_of_epoch = False
        self._interrupted = None
        clear_half_restored([self])

    def __call__(self, *inputs: Any) -> Any:
        """Run one micro-step over one micro-batch and return its loss, unscaled."""
        refuse_capture()
        refuse_half_restored([self])
        self._refuse_unknown()
        self._refuse_another_world()
        # MindSpore caches graphs by phase, not by the training flag. Otherwise a graph compiled before set_train()
        # would run after it, with BatchNorm in inference mode.
        self._micro.phase = "train" if self.network.training else "predict"
        watched = self._begin_watch()
        self._interrupted = "anywhere"  # until the counters say so: what Ctrl-C leaves belongs to no position
        try:
            loss = self._micro(*inputs)
        except Exception as error:
            if is_before_adding(error):
                self._interrupted = "before adding"
            raise
        if watched is not None:
            self._watch = None
            watched()
        self._updated = False
        if self._counters.ends_cycle:
            self._end_cycle(self._counters.micro_steps + 1)
        else:
            self._counters = self._counters.after_micro_step()
        if self._last_of_epoch:
            self.expect_epoch_end(False)
            self._end_remainder()
        self._interrupted = None
        return loss

    def guard(self, fence: Callable[[], None]) -> None:
        """Call ``fence`` once, right before the next update: between the micro-step's graph and the update's."""
        self._fences.add(fence)

    def fence(self) -> None:
        """Run the fences given to `guard` now; call before anything else changes a parameter of the optimizer."""
        self._fences.run()

    def watch(self, begin: Callable[[], Callable[[], None]]) -> None:
        """Call ``begin`` before the next forward and backward pass, and the function that it returns right after it."""
        self._watch = begin

    def end_epoch(self) -> None:
        """End an epoch: carry on, flush or drop an incomplete cycle, as ``remainder`` says.

        `CheckpointCallback` calls it, and `ckptkit.data.resumable` triggers it. Any other loop must call it after the
        last micro-step of each epoch, before the save there. At a boundary it does nothing.

        Raises:
            ResumeError: As a call of the cell.
        """
        refuse_half_restored([self])
        self._refuse_unknown()
        before, self._interrupted = self._interrupted, "anywhere"
        self._end_remainder()
        self._interrupted = before

    def expect_epoch_end(self, last: bool = True) -> None:
        """Set whether the next call ends an epoch; that call then calls `end_epoch` itself.

        `ckptkit.data.resumable` calls this for every batch.
        """
        self._last_of_epoch = last

    def _refuse_another_world(self) -> None:
        if (ranks := world().size) != self._ranks:
            if ranks == 1:
                raise ConnectionError(
                    f"the group of {self._ranks} ranks is gone: MindSpore has closed it, as it does after it has lost "
                    "another rank. Look for the rank that ended first, and start the job again"
                )
            raise ValueError(
                f"this cell was made before mindspore.communication.init(), for {self._ranks} rank, not {ranks}. "
                "Make it after init()"
            )

    def _refuse_unknown(self) -> None:
        if self._interrupted == "anywhere":
            raise ResumeError(
                f"a call of this {type(self).__name__} was interrupted, and its parameters may have the gradients or "
                "a part of the update of a micro-step that was not counted. Restore a checkpoint. To train on with "
                "what is there, call cell.load_counters(cell.counters); the training is not the same then"
            )

    def _begin_watch(self) -> Callable[[], None] | None:
        if self._watch is None:
            return None
        self.fence()  # this forward pass may write to the optimizer's parameters
        return self._watch()

    def _end_remainder(self) -> None:
        if self.remainder == "carry" or self._counters.micro_step == 0:
            return
        if self.remainder == "flush":
            self._end_cycle(self._counters.micro_steps)
        else:
            self._clear()
            self._begin_cycle(self._counters.micro_steps, updated=False)

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
        """Refuse to be differentiated; `nn.TrainOneStepCell` calls this on the cell that it wraps.

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
        """Refuse: only a graph compiled around this cell calls this, and it would skip ``__call__``."""
        return refuse_graph()

    def update_parameters_name(self, prefix: str = "", recurse: bool = True) -> None:
        """Keep all names, since checkpoints are keyed by them; MindSpore calls this when a wrapper takes the cell."""


def _zeros(name: str, shape: tuple[int, ...]) -> ms.Parameter:
    return ms.Parameter(ops.zeros(shape, ms.float32), name=name, requires_grad=False)


def _prefix_beside(optimizer: nn.Optimizer) -> str:
    # nn.SGD, nn.Adagrad and nn.Adadelta name their own state accum.<weight>.
    weights = {id(parameter) for parameter in optimizer.parameters}
    taken = any(
        parameter.name.startswith("accum.") for parameter in optimizer.get_parameters() if id(parameter) not in weights
    )
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
    # MindSpore would not raise; it would rename every parameter of the cell at the first call.
    names = Counter(parameter.name for parameter in cell.get_parameters())
    twice = sorted(name for name, count in names.items() if count > 1)
    if twice:
        raise ValueError(f"parameter names must differ, these are used more than once: {some(twice)}")


@ms.constexpr(reuse_result=False, check=False)
def refuse_graph() -> None:
    """Raise while a graph around an `AccumulationTrainCell` is being compiled."""
    raise RuntimeError(_REFUSAL.format(wrapper_name(inspect.currentframe())))


def refuse_capture() -> None:
    """Raise if an `AccumulationTrainCell` is called while Python code is being captured into a graph."""
    for frame in frames_from(inspect.currentframe()):
        if frame.f_code.co_filename.endswith(_CAPTURING_FILES):
            raise RuntimeError(_REFUSAL.format(wrapper_name(frame)))


def wrapper_name(frame: FrameType | None) -> str:
    """Name what is being compiled, by the locals of the nearest compiling frame at or below ``frame``.

    MindSpore does not tell a constexpr whose graph it is in, but it compiles on the caller's stack, below
    ``Cell.compile`` (``self``) or a wrapper of `ms.jit` (private: ``fn``, ``self.fn``, ``self.obj``). If these move,
    the message says "another graph" and the tests that expect the name fail.
    """
    for compiling in frames_from(frame):
        variables = compiling.f_locals
        owner = variables.get("self")
        for cell in (owner, getattr(owner, "obj", None)):
            if isinstance(cell, nn.Cell):
                return type(cell).__qualname__
        function = variables.get("fn", getattr(owner, "fn", None))
        if inspect.isfunction(function) and not isinstance(owner, ops.Primitive):  # the constexpr itself is a Primitive
            return f"the @ms.jit function {function.__qualname__}"
    return "another graph"


def mark_half_restored(cells: Iterable[nn.Cell], checkpoint: str) -> None:
    """Mark that from now on ``cells`` hold partly the values of ``checkpoint`` and partly earlier ones."""
    for cell in cells:
        vars(cell)[_MARK] = checkpoint  # bypasses nn.Cell's attribute handling


def clear_half_restored(cells: Iterable[nn.Cell]) -> None:
    """Remove the mark: ``cells`` hold one state."""
    for cell in cells:
        vars(cell).pop(_MARK, None)


def half_restored_from(cells: Iterable[nn.Cell]) -> str | None:
    return next((vars(cell)[_MARK] for cell in cells if _MARK in vars(cell)), None)


def refuse_half_restored(cells: Iterable[nn.Cell]) -> None:
    for cell in cells:
        if (checkpoint := vars(cell).get(_MARK)) is not None:
            raise ResumeError(
                f"the parameters of this {type(cell).__name__} are half restored from {checkpoint}: that restore "
                "failed before its end. Restore a checkpoint; until that has succeeded, nothing can be trained or saved"
            )


def refuse_half_done(cells: Iterable[nn.Cell]) -> None:
    """Raise ResumeError if a cell is half restored, or its last call did not return."""
    for cell in cells:
        if _MARK in vars(cell):
            refuse_half_restored([cell])
        if isinstance(cell, AccumulationTrainCell) and cell._interrupted is not None:
            cell._refuse_unknown()
            raise ResumeError(
                f"the last call of this {type(cell).__name__} raised in its forward or backward pass, and its "
                "parameters may have a part of that micro-step, such as running statistics. This state is not saved. "
                "Restore a checkpoint, or train on: after a complete micro-step the state is saved, with that part"
            )


def optimizers_of(cells: Sequence[nn.Cell]) -> list[nn.Cell]:
    """Return every optimizer among ``cells`` and the cells inside them."""
    return [inner for cell in cells for _, inner in cell.cells_and_names() if isinstance(inner, OPTIMIZERS)]
