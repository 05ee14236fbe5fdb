# truth: differs
# class: callback
# Hugging Face style trainer with state, control and a callback handler; a callback reads state.log_history to lower the rate, and only the weights are stored.

import os
from dataclasses import dataclass, field
from typing import Optional

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_seed(341)


@dataclass
class TrainingArguments:
    learning_rate: float = 0.06
    logging_steps: int = 2
    num_train_epochs: int = 3
    lr_factor: float = 0.7


@dataclass
class TrainerState:
    global_step: int = 0
    best_metric: Optional[float] = None
    log_history: list = field(default_factory=list)


@dataclass
class TrainerControl:
    should_log: bool = False
    should_lower_rate: bool = False


class TrainerCallback:
    def on_step_end(self, args, state, control, **kw): ...
    def on_log(self, args, state, control, **kw): ...


class DefaultFlowCallback(TrainerCallback):
    def on_step_end(self, args, state, control, **kw):
        control.should_log = state.global_step % args.logging_steps == 0


class RateOnPlateau(TrainerCallback):
    def on_log(self, args, state, control, **kw):
        losses = [entry["loss"] for entry in state.log_history]
        control.should_lower_rate = len(losses) > 2 and losses[-1] > 0.9 * min(losses[:-1])


class Trainer:
    def __init__(self, model, args, callbacks):
        self.model, self.args = model, args
        self.optimizer = nn.Momentum(model.trainable_params(), args.learning_rate, 0.9)
        self.state, self.control = TrainerState(), TrainerControl()
        self.callbacks = [DefaultFlowCallback(), *callbacks]
        mse = nn.MSELoss()
        self.vg = ms.value_and_grad(lambda x, y: mse(model(x), y), None, model.trainable_params())

    def call(self, event):
        for cb in self.callbacks:
            getattr(cb, event)(self.args, self.state, self.control, model=self.model)

    def training_step(self, inputs):
        loss, grads = self.vg(*inputs)
        self.optimizer(grads)
        self.state.global_step += 1
        self.call("on_step_end")
        if self.control.should_log:
            self.state.log_history.append({"loss": float(loss.asnumpy()), "step": self.state.global_step})
            self.call("on_log")
        if self.control.should_lower_rate:
            lower = float(self.optimizer.learning_rate.asnumpy()) * self.args.lr_factor
            ops.assign(self.optimizer.learning_rate, ms.Tensor(lower, ms.float32))
            self.control.should_lower_rate = False


r = np.random.RandomState(41)
rows = []
for _ in range(8):
    x = r.randn(6, 4).astype(np.float32)
    rows.append((ms.Tensor(x), ms.Tensor((x[:, :1] + r.randn(6, 1)).astype(np.float32))))
trainer = Trainer(nn.SequentialCell(nn.Dense(4, 8), nn.ReLU(), nn.Dense(8, 1)), TrainingArguments(), [RateOnPlateau()])
batches = ck.data.resumable(rows, epochs=trainer.args.num_train_epochs)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([trainer.model, trainer.optimizer], batches)
    trainer.state.global_step = manager.restore(state).batches_delivered
    for batch in batches:
        manager.fence()
        trainer.training_step(batch)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
