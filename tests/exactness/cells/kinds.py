"""The table of foreign train cells and loops, each as a user would write it.

``python -m exactness.cells.kinds KIND MODE DATA FOLDER TRACE KILL`` trains one; no folder, no ckptkit.
"""

import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mindspore as ms
from mindspore import amp, boost, nn, ops
from mindspore.parallel.nn import GradAccumulation
from mindspore.train import Model

import ckptkit as ck
from ckptkit.mindspore.train.micro_steps import BoostCycle
from ckptkit.nn import Dropout
from exactness.cells.data import CLASSES, DATA, EPOCHS, FEATURES, STEPS, K
from exactness.cells.run import Run


@dataclass
class Training:
    """What a script has built."""

    cells: Any
    step: Callable[..., Any] | None = None
    stateful: dict[str, Any] = field(default_factory=dict)
    cycle: Any = None


def functional_dropout(x):
    """Exact in PYNATIVE; in a graph its seed is frozen when it is compiled."""
    return ops.dropout(x, 0.2)


class Network(nn.Cell):
    def __init__(self, drop=None):
        super().__init__()
        self.hidden = nn.Dense(FEATURES, 8)
        self.norm = nn.BatchNorm1d(8)
        self.out = nn.Dense(8, CLASSES)
        if drop is None and ms.get_context("mode") == ms.PYNATIVE_MODE:
            drop = functional_dropout
        self.drop = drop

    def construct(self, x):
        x = ops.tanh(self.norm(self.hidden(x)))
        if self.drop is not None:
            x = self.drop(x)
        return self.out(x)


class WithLoss(nn.Cell):
    def __init__(self, backbone, factor=1.0):
        super().__init__()
        self.backbone = backbone
        self.factor = factor

    def construct(self, x, y):
        return ops.cross_entropy(self.backbone(x), y) * self.factor


def momentum(network):
    rates = [0.05 / (1 + step) for step in range(EPOCHS * STEPS)]
    return nn.Momentum(network.trainable_params(), rates, 0.9, weight_decay=1e-3)


def adam(network):
    return nn.Adam(network.trainable_params(), nn.ExponentialDecayLR(1e-2, 0.9, 2))


def plain_model():
    network = Network()
    return Training(Model(network, nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"), momentum(network)))


def one_step():
    network = WithLoss(Network())
    return Training(nn.TrainOneStepCell(network, adam(network)).set_train())


class LossScaled(nn.TrainOneStepWithLossScaleCell):
    """The operators that the stock cell looks for overflows with have no kernel on CPU, in any mode."""

    def get_overflow_status(self, status, compute_output):
        return ops.logical_not(amp.all_finite(compute_output))


def one_step_with_loss_scale():
    # So large that the first micro-steps overflow; each of those halves it, and three good ones double it.
    network = WithLoss(Network(), 1e3)
    scaling = nn.DynamicLossScaleUpdateCell(loss_scale_value=2.0**120, scale_factor=2, scale_window=3)
    return Training(LossScaled(network, adam(network), scaling).set_train())


class Boosted(nn.Cell):
    """A user's train step around MindSpore's own accumulation, which renames the network's parameters."""

    def __init__(self, network, optimizer):
        super().__init__()
        self.network = network
        self.accumulation = boost.GradientAccumulation(K, optimizer)
        self.weights = self.accumulation.weights
        self.differentiate = ms.value_and_grad(network, None, self.weights)

    def construct(self, x, y):
        loss, gradients = self.differentiate(x, y)
        return self.accumulation(loss, gradients)


def boosted():
    network = WithLoss(Network())
    cell = Boosted(network, adam(network))
    return Training(Model(cell), cycle=BoostCycle(cell.accumulation))


def accumulation_in_one_call():
    network = GradAccumulation(WithLoss(Network()), 2)
    return Training(nn.TrainOneStepCell(network, momentum(network)).set_train())


class OwnStep(nn.Cell):
    """A user's train step: own accumulators and counters, a learning rate per micro-step, averaged weights.

    It has the two attributes of a `CycleAdapter`.
    """

    def __init__(self, network):
        super().__init__()
        self.accumulation_steps = K
        self.network = network
        self.weights = ms.ParameterTuple(network.trainable_params())
        self.sums = self.weights.clone("sums", "zeros")
        self.averages = self.weights.clone("ema", "same")
        self.micro_step = ms.Parameter(ms.Tensor(0, ms.int32), name="micro_step", requires_grad=False)
        self.calls = ms.Parameter(ms.Tensor(0.0, ms.float32), name="calls", requires_grad=False)
        self.differentiate = ms.value_and_grad(network, None, self.weights)

    def construct(self, x, y):
        loss, gradients = self.differentiate(x, y)
        rate = 0.1 / (1.0 + self.calls)
        for total, gradient in zip(self.sums, gradients):  # noqa: B905 - GRAPH knows no strict=
            ops.assign_add(total, gradient * rate)
        ops.assign_add(self.calls, ms.Tensor(1.0, ms.float32))
        ops.assign_add(self.micro_step, ms.Tensor(1, ms.int32))
        if self.micro_step >= self.accumulation_steps:
            for weight, total, average in zip(self.weights, self.sums, self.averages):  # noqa: B905
                ops.assign_sub(weight, total)
                ops.assign(average, average * 0.9 + weight * 0.1)
                ops.assign(total, ops.zeros_like(total))
            ops.assign(self.micro_step, ms.Tensor(0, ms.int32))
        return loss


def own_step():
    return Training(OwnStep(WithLoss(Network())).set_train())


def functional_loop():
    network = WithLoss(Network(Dropout(0.3)))
    network.set_train()
    optimizer = adam(network)
    scaler = amp.DynamicLossScaler(2.0**120, 2, 3)

    def forward(x, y):
        return scaler.scale(network(x, y) * 1e3)

    differentiate = ms.value_and_grad(forward, None, optimizer.parameters)

    @ms.jit
    def step(x, y):
        loss, gradients = differentiate(x, y)
        gradients = scaler.unscale(gradients)
        finite = amp.all_finite(gradients)
        if finite:
            loss = ops.depend(loss, optimizer(gradients))
        loss = ops.depend(loss, scaler.adjust(finite))
        return scaler.unscale(loss), finite

    return Training([network, optimizer], step, {"scaler": scaler})


def dropping():
    network = WithLoss(Network(Dropout(0.4)))
    return Training(Model(ck.AccumulationTrainCell(network, adam(network), K)))


KINDS: dict[str, Callable[[], Training]] = {
    "Model(network, loss, optimizer)": plain_model,
    "TrainOneStepCell": one_step,
    "TrainOneStepWithLossScaleCell": one_step_with_loss_scale,
    "boost.GradientAccumulation": boosted,
    "TrainOneStepCell(GradAccumulation)": accumulation_in_one_call,
    "own train step": own_step,
    "functional loop": functional_loop,
    "ckptkit.nn.Dropout": dropping,
}
WITH_MODEL = ("Model(network, loss, optimizer)", "boost.GradientAccumulation", "ckptkit.nn.Dropout")
SCALED = ("TrainOneStepWithLossScaleCell", "functional loop")


def main(names: list[str], folder: str, trace: str, kill: str) -> None:
    kind, mode, data = names
    with contextlib.suppress(RuntimeError):  # a forked process has it already
        ms.device_context.cpu.op_tuning.threads_num(1)  # other splits of the work round otherwise, in any young process
    ms.set_context(mode=ms.GRAPH_MODE if mode == "graph" else ms.PYNATIVE_MODE)
    ms.set_seed(1)
    ms.manual_seed(1)  # set_seed leaves this generator alone, and MindSpore 2.7 begins it at random
    run = Run(Path(folder) if folder else None, Path(trace), int(kill))
    training, chosen = KINDS[kind](), DATA[data]
    also = {"cycle": training.cycle, "augmentation": chosen.augmentation, "strict": True}
    if kind in WITH_MODEL:
        run.train(training.cells, chosen.build(), **also)
    else:
        run.loop(training.cells, chosen.build(), training.step, **also, **training.stateful)


if __name__ == "__main__":
    main(sys.argv[1:4], *sys.argv[4:])
