"""Runs one life of the demo's training: ``python -m ckptkit.mindspore.demo PLAN``, once per process.

Trains a small convolutional network on real digits with K=4 and kills itself with SIGKILL according to the plan.
Before any kill, each micro-step's digests are appended to the trace file, durably, so that
`ckptkit.cli.commands.demo` can compare the lives of an interrupted run with an uninterrupted one.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn
from mindspore.train import Callback, Model

from ckptkit.core.save_policy import SaveEvery
from ckptkit.manager.options import Saving
from ckptkit.mindspore.callback.callback import CheckpointCallback
from ckptkit.mindspore.digits import load_digits
from ckptkit.mindspore.rng import capture_rng
from ckptkit.mindspore.train.cell import AccumulationTrainCell
from ckptkit.storage import ByteStream, Storage, open_storage

ACCUMULATION_STEPS = 4
BATCH_SIZE = 48
EPOCHS = 6
SAVE_EVERY_MICRO_STEPS = 5  # coprime to K, so that saves fall on every micro-step of a cycle in turn


@dataclass(frozen=True)
class Plan:
    """What one process has to do; no kill for a 0."""

    root: str  # the run root, a path or a URL
    trace: str  # file that the digests are appended to
    mode: Literal["graph", "pynative"]
    seed: int  # of the network and of the order of the data
    kill_after: int = 0  # micro-step at whose end to die, before any save there
    kill_in_save_after: int = 0  # micro-step from which on to die inside the next write of a save
    kill_at_epoch: int = 0  # epoch (from 1) at whose end to die, before any save there


def digit_network() -> nn.Cell:
    """Return a classifier of 8 x 8 images with BatchNorm: (N, 1, 8, 8) to (N, 10)."""
    return nn.SequentialCell(
        *(nn.Conv2d(1, 16, 3, has_bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2, 2)),
        *(nn.Conv2d(16, 32, 3, has_bias=False), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.Flatten(), nn.Dense(32 * 4 * 4, 10)),
    )


class Trace(Callback):
    """Appends one line of digests per micro-step."""

    def __init__(self, path: Path, cell: AccumulationTrainCell) -> None:
        super().__init__()
        self._file = path.open("a", encoding="utf-8")
        self._cell = cell

    def write(self, line: dict[str, Any]) -> None:
        """Append ``line`` durably, so that it survives a kill."""
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def on_train_step_end(self, run_context: Any) -> None:
        """Digest everything that the next micro-step depends on, and the batch of this one."""
        params = run_context.original_args()
        accumulators = {parameter.name for parameter in self._cell.accumulators}
        weights = {parameter.name for parameter in self._cell.network.get_parameters()}
        digests = {"parameters": hashlib.sha256(), "moments": hashlib.sha256(), "accumulators": hashlib.sha256()}
        for parameter in self._cell.get_parameters():
            name = parameter.name
            kind = "accumulators" if name in accumulators else "parameters" if name in weights else "moments"
            digests[kind].update(name.encode() + parameter.asnumpy().tobytes())
        line = {kind: digest.hexdigest() for kind, digest in digests.items()}
        line["counters"] = repr(self._cell.counters)
        line["rng"] = hashlib.sha256(repr(capture_rng()).encode()).hexdigest()
        line["batch"] = hashlib.sha256(
            b"".join(column.asnumpy().tobytes() for column in params.train_dataset_element)
        ).hexdigest()
        self.write({"step": params.cur_step_num, **line})


class DemoKill(Callback):
    """Kills this process according to the plan."""

    def __init__(self, plan: Plan, arm_storage: Callable[[], object]) -> None:
        super().__init__()
        self._plan = plan
        self._arm_storage = arm_storage

    def on_train_step_end(self, run_context: Any) -> None:
        np.random.random()  # training draws, so that a random state that was not restored shows in the trace
        step = run_context.original_args().cur_step_num
        if step == self._plan.kill_after:
            die()
        if step == self._plan.kill_in_save_after:
            self._arm_storage()

    def on_train_epoch_end(self, run_context: Any) -> None:
        if run_context.original_args().cur_epoch_num == self._plan.kill_at_epoch:
            die()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_in_write(storage: Storage) -> None:
    """Make the next write of the optimizer's state end this process, with half of the file written."""
    write = storage.write

    def die_halfway(key: str, stream: ByteStream, size_bytes: int) -> None:
        if "optimizer-000" not in key:
            return write(key, stream, size_bytes)
        half = bytearray(size_bytes // 2)
        stream.readinto(memoryview(half))
        write(key, io.BytesIO(half), len(half))
        die()

    storage.write = die_halfway  # type: ignore[method-assign]


def live(plan: Plan) -> None:
    """Resume or start the run of ``plan``, train it to its end, and write the accuracy on held-out digits."""
    ms.set_context(mode=ms.GRAPH_MODE if plan.mode == "graph" else ms.PYNATIVE_MODE)
    ms.set_seed(plan.seed)
    ms.manual_seed(plan.seed)  # set_seed does not seed this generator, and MindSpore 2.7 starts it at random
    digits = load_digits()
    network = digit_network()
    optimizer = nn.Adam(network.trainable_params(), learning_rate=0.01)
    loss = nn.WithLossCell(network, nn.CrossEntropyLoss())
    cell = AccumulationTrainCell(loss, optimizer, ACCUMULATION_STEPS, clip_norm=5.0)

    storage = open_storage(plan.root)
    # Wait for saves, so that every death finds a checkpoint to resume from, even on slow storage.
    ckpt = CheckpointCallback(
        storage, save=SaveEvery(micro_steps=SAVE_EVERY_MICRO_STEPS), saving=Saving(when_busy="wait")
    )
    columns = {"image": digits.train_images, "label": digits.train_labels}
    data = ds.NumpySlicesDataset(columns, shuffle=True).batch(BATCH_SIZE)  # 30 batches per epoch, the last one smaller
    model = Model(cell)
    point = ckpt.resume(model, data, EPOCHS)
    trace = Trace(Path(plan.trace), cell)
    trace.write({"resumed_from": point.checkpoint, "batches_delivered": point.batches_delivered})
    others = [trace, DemoKill(plan, lambda: die_in_write(storage))]
    model.train(EPOCHS, data, callbacks=[*others, ckpt], initial_epoch=point.epoch)
    network.set_train(False)
    predicted = network(ms.Tensor(digits.test_images)).asnumpy().argmax(axis=1)
    trace.write({"accuracy": float((predicted == digits.test_labels).mean())})


if __name__ == "__main__":
    live(Plan(**json.loads(sys.argv[1])))
