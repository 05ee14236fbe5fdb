# truth: differs
# class: callback
# A Java-like state machine of training phases (warm-up, cruise, cool-down) moves on by the losses; its phase sets the learning rate.

import os
from abc import ABC, abstractmethod
from enum import Enum, auto

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops
from mindspore.train import Callback, Model

import ckptkit as ck


class Phase(Enum):
    WARM_UP = auto()
    CRUISE = auto()
    COOL_DOWN = auto()


class TransitionListener(ABC):
    @abstractmethod
    def on_transition(self, old: Phase, new: Phase) -> None: ...


class PrintingListener(TransitionListener):
    def on_transition(self, old, new):
        print(f"{old.name} -> {new.name}")


class PhaseMachine:
    def __init__(self):
        self._phase = Phase.WARM_UP
        self._quiet_steps = 0
        self._previous_loss = None
        self._listeners = []

    def add_listener(self, listener: TransitionListener) -> "PhaseMachine":
        self._listeners.append(listener)
        return self

    def accept(self, loss: float) -> None:
        old = self._phase
        falling = self._previous_loss is not None and loss < self._previous_loss
        self._quiet_steps += 1 if falling else 0
        match self._phase:
            case Phase.WARM_UP if self._quiet_steps >= 3:
                self._phase, self._quiet_steps = Phase.CRUISE, 0
            case Phase.CRUISE if self._quiet_steps >= 6:
                self._phase, self._quiet_steps = Phase.COOL_DOWN, 0
            case _:
                pass
        self._previous_loss = loss
        if old is not self._phase:
            for listener in self._listeners:
                listener.on_transition(old, self._phase)

    def learning_rate(self) -> float:
        base = {Phase.WARM_UP: 0.002, Phase.CRUISE: 0.05, Phase.COOL_DOWN: 0.01}[self._phase]
        return base * (1 + 0.1 * self._quiet_steps)


class PhaseCallback(Callback):
    def __init__(self, machine: PhaseMachine, optimizer):
        super().__init__()
        self._machine = machine
        self._optimizer = optimizer

    def on_train_step_end(self, run_context):
        self._machine.accept(float(run_context.original_args().net_outputs.asnumpy()))
        ops.assign(self._optimizer.learning_rate, ms.Tensor(self._machine.learning_rate(), ms.float32))


class Main:
    @staticmethod
    def main() -> None:
        ms.set_seed(1995)
        rng = np.random.RandomState(1)
        x = rng.randn(64, 6).astype(np.float32)
        y = (x[:, :1] - 0.5 * x[:, 1:2]).astype(np.float32)
        data = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(8)
        network = nn.SequentialCell(nn.Dense(6, 8), nn.Sigmoid(), nn.Dense(8, 1))
        optimizer = nn.Momentum(network.trainable_params(), 0.002, 0.9)
        machine = PhaseMachine().add_listener(PrintingListener())
        checkpoint = ck.CheckpointCallback(
            os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
        )
        checkpoint.train(
            Model(network, nn.MSELoss(), optimizer), 3, data, callbacks=[PhaseCallback(machine, optimizer)]
        )


Main.main()
os._exit(0)
