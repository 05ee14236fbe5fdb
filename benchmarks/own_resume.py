"""Shows what a resume in the middle of an epoch restores: ``python -m benchmarks.own_resume``.

A training of `Model.train`, whose train cell adds up gradients as MindSpore's guide to gradient accumulation does, ends
in the middle of an epoch and of an accumulation cycle. It is resumed once by MindSpore's own means (`ModelCheckpoint`,
`load_checkpoint`, ``initial_epoch``) and once by ckptkit. Each row compares what the resumed training has with that of
one that was never interrupted.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
from pathlib import Path
from typing import Any

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops
from mindspore.train import Callback, CheckpointConfig, Model, ModelCheckpoint

import ckptkit as ck

EPOCHS, BATCHES, K, ENDS_AFTER = 3, 8, 4, 11  # micro-steps: in the second epoch, in the third cycle


class Accumulating(nn.TrainOneStepCell):
    """Calls the optimizer with the sum of the gradients of K batches."""

    def __init__(self, network: nn.Cell, optimizer: nn.Optimizer) -> None:
        super().__init__(network, optimizer)
        self.sums = optimizer.parameters.clone(prefix="sum", init="zeros")
        self.count = 0

    def construct(self, *inputs: ms.Tensor) -> ms.Tensor:
        loss = self.network(*inputs)
        for total, gradient in zip(self.sums, self.grad(self.network, self.weights)(*inputs, 1.0), strict=True):
            ops.assign_add(total, gradient)
        self.count += 1
        if self.count % K == 0:
            self.optimizer(tuple(total / K for total in self.sums))
            for total in self.sums:
                ops.assign(total, ops.zeros_like(total))
        return loss


class Watch(Callback):
    """Records the first batch, a draw, the state before it, and the losses so far; may end the training."""

    def __init__(self, ends_after: int | None = None) -> None:
        self.losses: list[float] = []
        self.before: dict[int, dict[str, Any]] = {}
        self._ends_after, self._noted = ends_after, 0

    def on_train_step_begin(self, run_context: Any) -> None:
        cell = run_context.original_args().train_network
        weights = [parameter.asnumpy().tobytes() for parameter in cell.optimizer.get_parameters()]
        sums = [total.asnumpy().tobytes() for total in cell.sums], cell.count % K
        seen = {
            "weights and moments": weights,
            "gradients added up so far": sums,
            "a callback's history": [*self.losses],
        }
        self.before[len(self.before)] = {**seen, "random state": np.random.random()}

    def on_train_step_end(self, run_context: Any) -> None:
        parameters = run_context.original_args()
        batch = parameters.train_dataset_element[0].asnumpy().tobytes()
        self.before[len(self.before) - 1]["the next batch"] = batch
        self.losses.append(float(parameters.net_outputs))
        if len(self.losses) == self._ends_after:
            raise InterruptedError


def training() -> tuple[Model, ds.Dataset]:
    ms.set_seed(1)
    np.random.seed(1)
    network = nn.WithLossCell(nn.Dense(4, 1), nn.MSELoss())
    rows = np.random.default_rng(0).random((2 * BATCHES, 4), np.float32)
    data = ds.NumpySlicesDataset({"x": rows, "y": rows[:, :1]}, shuffle=True).batch(2)
    return Model(Accumulating(network, nn.Adam(network.trainable_params(), 0.01))), data


def main() -> None:
    """Print the table."""
    logging.disable()
    whole = Watch()
    model, data = training()
    model.train(EPOCHS, data, callbacks=[whole], dataset_sink_mode=False)
    expected = whole.before[ENDS_AFTER]
    columns = {}
    with tempfile.TemporaryDirectory() as folder:
        model, data = training()
        config = CheckpointConfig(save_checkpoint_steps=ENDS_AFTER, keep_checkpoint_max=1)
        saver = ModelCheckpoint("own", folder, config)
        with contextlib.suppress(InterruptedError):
            model.train(EPOCHS, data, callbacks=[saver, Watch(ENDS_AFTER + 1)], dataset_sink_mode=False)
        model, data = training()
        resumed = Watch()
        [newest] = Path(folder).glob("own-*.ckpt")
        ms.load_param_into_net(model.train_network, ms.load_checkpoint(str(newest)))
        model.train(EPOCHS, data, callbacks=[resumed], dataset_sink_mode=False, initial_epoch=ENDS_AFTER // BATCHES)
        columns["MindSpore's own"] = resumed.before[0]

        save = {"save": ck.SaveEvery(micro_steps=ENDS_AFTER), "saving": ck.Saving(when_busy="wait")}
        model, data = training()
        with contextlib.suppress(InterruptedError):
            watch = Watch(ENDS_AFTER + 1)
            ck.CheckpointCallback(folder, **save).train(model, EPOCHS, data, callbacks=[watch], dataset_sink_mode=False)
        model, data = training()
        resumed = Watch()
        ck.CheckpointCallback(folder, **save).train(model, EPOCHS, data, callbacks=[resumed], dataset_sink_mode=False)
        columns["ckptkit"] = resumed.before[max(resumed.before) - (EPOCHS * BATCHES - ENDS_AFTER) + 1]
    print(f"| after a kill in the middle of an epoch | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
    for name, value in expected.items():
        print(
            f"| {name} | {' | '.join('as it was' if there[name] == value else 'lost' for there in columns.values())} |"
        )


if __name__ == "__main__":
    main()
