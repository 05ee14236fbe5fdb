"""A trainer with a loop of its own, of the protocol that `CheckpointCallback.attach` takes.

Its state is spread as in real ones: local variables of the loop, attributes of the trainer and of its state and
control, callbacks, parameters of the train cell, and a sampler that draws from `numpy.random`.
"""

import types
from dataclasses import dataclass, field

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops

from support.training import Mlp, adam, samples

EVENTS = (
    *("on_train_begin", "on_epoch_begin", "on_step_begin", "on_substep_end", "on_step_end", "on_log", "on_evaluate"),
    *("on_epoch_end", "on_train_end"),
)


@dataclass
class State:
    epoch: float = 0.0
    global_step: int = 0
    max_steps: int = 0
    num_train_epochs: int = 0
    log_history: list = field(default_factory=list)
    best_metric: float | None = None


@dataclass
class Control:
    should_training_stop: bool = False
    should_epoch_stop: bool = False
    should_log: bool = False
    should_evaluate: bool = False


class Handler:
    """Calls the callbacks; each may return another control."""

    def __init__(self, callbacks):
        self.callbacks = callbacks

    def __getattr__(self, event):
        if event not in EVENTS:
            raise AttributeError(event)

        def call(args, state, control):
            for one in self.callbacks:
                control = getattr(one, event, lambda *given: None)(args, state, control) or control
            return control

        return call


class Flow:
    """The trainer's own: logs every second update, evaluates after each epoch, ends the training."""

    def on_step_end(self, args, state, control):
        control.should_log = state.global_step % 2 == 0
        control.should_training_stop = state.global_step >= state.max_steps

    def on_epoch_end(self, args, state, control):
        control.should_evaluate = True


class Order:
    """Draws each epoch's order from the process's generator, as samplers of trainers do."""

    def __init__(self, size):
        self.size = size

    def __iter__(self):
        yield from np.random.permutation(self.size).tolist()

    def __len__(self):
        return self.size


class TrainCell(nn.Cell):
    """Adds up the gradients of K batches in parameters of its own."""

    def __init__(self, network, optimizer, k):
        super().__init__(auto_prefix=False)
        self.network, self.optimizer, self.k = network, optimizer, k
        self.gradients = ms.value_and_grad(network, None, optimizer.parameters)
        self.sums = optimizer.parameters.clone(prefix="sums", init="zeros")
        self.calls = ms.Parameter(ms.Tensor(0, ms.int32), name="calls", requires_grad=False)

    def construct(self, x, y):
        loss, gradients = self.gradients(x, y)
        for total, one in zip(self.sums, gradients, strict=True):
            ops.assign_add(total, one / self.k)
        ops.assign_add(self.calls, ms.Tensor(1, ms.int32))
        if int(self.calls.asnumpy()) % self.k == 0:
            self.optimizer(tuple(self.sums))
            for total in self.sums:
                ops.assign(total, ops.zeros_like(total))
        return loss


class LoopingTrainer:
    """Trains ``epochs`` epochs, or as many optimizer steps as ``max_steps`` says."""

    def __init__(self, *callbacks, epochs=3, k=2, size=5, max_steps=0, model=None):
        self.args = types.SimpleNamespace(num_train_epochs=epochs, gradient_accumulation_steps=k, max_steps=max_steps)
        self.size = size
        self.state, self.control = State(), Control()
        self.callback_handler = Handler([Flow(), *callbacks])
        self.model = model or Mlp()
        self.optimizer = None
        self.current_flos = 0.0
        self.around = None  # makes an iterator around the batches
        self.order = Order(size * 4 - 1)  # a smaller last batch

    def get_train_dataloader(self):
        columns = samples(len(self.order))
        rows = [{name: one[at] for name, one in columns.items()} for at in range(len(self.order))]

        def collate(items, info):
            return {name: np.stack([one[name] for one in items]) for name in columns}

        data = ds.GeneratorDataset(
            rows, "item", sampler=self.order, num_parallel_workers=1, python_multiprocessing=False
        )
        return data.batch(4, per_batch_map=collate, num_parallel_workers=1).repeat(1)

    def training_step(self, model, inputs):
        loss = model(ms.Tensor(inputs["x"]), ms.Tensor(inputs["y"]))
        return loss / self.args.gradient_accumulation_steps, ms.Tensor(False)

    def floating_point_ops(self, inputs):
        return inputs["x"].size

    def evaluate(self):
        columns = samples(8, seed=3)
        self.model.set_train(False)
        loss = float(self.model(ms.Tensor(columns["x"]), ms.Tensor(columns["y"])).asnumpy())
        self.state.best_metric = min(loss, loss if self.state.best_metric is None else self.state.best_metric)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control)

    def log(self, **values):
        self.state.log_history.append({**values, "epoch": self.state.epoch, "step": self.state.global_step})
        self.control = self.callback_handler.on_log(self.args, self.state, self.control)

    def train(self, resume_from_checkpoint=None):
        assert resume_from_checkpoint is None, "this trainer cannot resume"
        args, loader = self.args, self.get_train_dataloader()
        k, size = args.gradient_accumulation_steps, len(loader)
        self.optimizer = adam(self.model.trainable_params())
        self.train_model = TrainCell(self.model, self.optimizer, k)
        self.state = State(max_steps=args.max_steps or args.num_train_epochs * (size // k or 1))
        self.state.num_train_epochs = args.num_train_epochs
        tr_loss, batches = 0.0, 0
        self._total_loss_scalar, self._globalstep_last_logged = 0.0, 0
        self.control.should_training_stop = False
        self.control = self.callback_handler.on_train_begin(args, self.state, self.control)
        for epoch in range(self.state.num_train_epochs):
            iterator = loader.create_dict_iterator(num_epochs=1, output_numpy=True)
            self.control = self.callback_handler.on_epoch_begin(args, self.state, self.control)
            step, iterator = -1, self.around(iterator) if self.around else iterator
            for step, columns in enumerate(iterator):
                inputs = columns["item"]
                batches += 1
                if step % k == 0:
                    self.control = self.callback_handler.on_step_begin(args, self.state, self.control)
                self.model.set_train()
                loss, _ = self.training_step(self.train_model, inputs)
                tr_loss += loss.asnumpy()
                self.current_flos += float(self.floating_point_ops(inputs))
                if batches % k == 0:
                    self.state.global_step += 1
                    self.state.epoch = epoch + (step + 1) / size
                    self.control = self.callback_handler.on_step_end(args, self.state, self.control)
                    if self.control.should_log:
                        self._total_loss_scalar += tr_loss.item()
                        self.log(loss=tr_loss.item() / (self.state.global_step - self._globalstep_last_logged))
                        self._globalstep_last_logged, tr_loss = self.state.global_step, tr_loss - tr_loss
                        self.control.should_log = False
                else:
                    self.control = self.callback_handler.on_substep_end(args, self.state, self.control)
                if self.control.should_epoch_stop or self.control.should_training_stop:
                    break
            if step < 0:
                self.control.should_training_stop = True
            self.control = self.callback_handler.on_epoch_end(args, self.state, self.control)
            if self.control.should_evaluate:
                self.evaluate()
                self.control.should_evaluate = False
            if self.control.should_training_stop:
                break
        self._total_loss_scalar += float(tr_loss)
        self.log(train_loss=self._total_loss_scalar / self.state.global_step)
        self.control = self.callback_handler.on_train_end(args, self.state, self.control)
        return types.SimpleNamespace(global_step=self.state.global_step, training_loss=self._total_loss_scalar)
