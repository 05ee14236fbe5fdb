"""Runs one life of the demo's training: ``python -m ckptkit.mindspore.demo PLAN``, once per process.

Trains a small convolutional network on real digits with K=4 and kills itself with SIGKILL according to the plan.
Before any kill, each micro-step's digests are appended to the trace file, durably, so that
`ckptkit.cli.commands.demo` can compare the lives of an interrupted run with an uninterrupted one.

On a device that the plan names, the network is larger than one slice of a save, saves are taken by slices, and each
micro-step draws from random operators.
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
from mindspore import mint, nn, ops
from mindspore.train import Callback, Model

from ckptkit.core.save_policy import SaveEvery
from ckptkit.core.save_report import SaveReport
from ckptkit.manager.options import Saving
from ckptkit.mindspore.callback.callback import CheckpointCallback
from ckptkit.mindspore.digits import load_digits
from ckptkit.mindspore.nn.dropout import Dropout
from ckptkit.mindspore.rng import capture_rng
from ckptkit.mindspore.state.manager import Training
from ckptkit.mindspore.train.cell import AccumulationTrainCell
from ckptkit.mindspore.versions import device_name
from ckptkit.storage import ByteStream, Storage, open_storage

ACCUMULATION_STEPS = 4
BATCH_SIZE = 48
EPOCHS = 6
SAVE_EVERY_MICRO_STEPS = 5  # coprime to K, so that saves fall on every micro-step of a cycle in turn
_HIDDEN = 768  # on a device: 4.6 MiB of weights and moments, so that a save by slices has two of them


@dataclass(frozen=True)
class Plan:
    """What one process has to do; no kill for a 0."""

    root: str  # the run root, a path or a URL
    trace: str  # file that the digests are appended to
    mode: Literal["graph", "pynative"]
    seed: int  # of the network and of the order of the data
    device: Literal["", "Ascend", "GPU", "CPU"] = ""  # MindSpore's default without one
    kill_after: int = 0  # micro-step at whose end to die, before any save there
    kill_in_save_after: int = 0  # micro-step from which on to die inside the next write of a save
    kill_at_epoch: int = 0  # epoch (from 1) at whose end to die, before any save there


def digit_network(hidden: int = 0) -> nn.Cell:
    """Return a classifier of 8 x 8 images with BatchNorm, and maybe a hidden layer: (N, 1, 8, 8) to (N, 10)."""
    features = 32 * 4 * 4
    return nn.SequentialCell(
        *(nn.Conv2d(1, 16, 3, has_bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2, 2)),
        *(nn.Conv2d(16, 32, 3, has_bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten()),
        *((nn.Dense(features, hidden), nn.ReLU()) if hidden else ()),
        nn.Dense(hidden or features, 10),
    )


class Draws:
    """Draws from random operators, each call from all."""

    def __init__(self) -> None:
        ones = ms.Tensor(np.ones((4, 64), np.float32))
        self.dropout, drops = Dropout(0.5).set_train(), nn.Dropout(p=0.5).set_train()
        self._operators: dict[str, Callable[[], ms.Tensor]] = {
            "ckptkit.nn.Dropout": lambda: self.dropout(ones),
            "ops.dropout": lambda: ops.dropout(ones, 0.5),
            "ops.rand": lambda: ops.rand(4, 64),
            "ops.randn": lambda: ops.randn(4, 64),
            "nn.Dropout": lambda: drops(ones),
            "mint.rand": lambda: mint.rand(4, 64),
            "mint.nn.functional.dropout": lambda: mint.nn.functional.dropout(ones, 0.5),
        }

    def digests(self) -> dict[str, str]:
        """Return a digest of the next draw of each; empty for an operator that has no kernel on this device."""
        return {name: self._digest(draw) for name, draw in self._operators.items()}

    def _digest(self, draw: Callable[[], ms.Tensor]) -> str:
        try:
            return hashlib.sha256(draw().asnumpy().tobytes()).hexdigest()
        except RuntimeError:  # MindSpore has no narrower class for a kernel that is missing
            return ""


def digests_of(cell: AccumulationTrainCell) -> dict[str, str]:
    """Return digests of everything that the next micro-step depends on, but its batch."""
    accumulators = {parameter.name for parameter in cell.accumulators}
    weights = {parameter.name for parameter in cell.network.get_parameters()}
    digests = {"parameters": hashlib.sha256(), "moments": hashlib.sha256(), "accumulators": hashlib.sha256()}
    for parameter in cell.get_parameters():
        name = parameter.name
        kind = "accumulators" if name in accumulators else "parameters" if name in weights else "moments"
        digests[kind].update(name.encode() + parameter.asnumpy().tobytes())
    line = {kind: digest.hexdigest() for kind, digest in digests.items()}
    line["counters"] = repr(cell.counters)
    return {**line, "rng": hashlib.sha256(repr(capture_rng()).encode()).hexdigest()}


class Trace(Callback):
    """Appends one line of digests per micro-step, and lines about the rest of a life."""

    def __init__(self, path: Path, draws: Draws | None = None) -> None:
        super().__init__()
        self._file = path.open("a", encoding="utf-8")
        self._draws = draws

    def write(self, line: dict[str, Any]) -> None:
        """Append ``line`` durably, so that it survives a kill."""
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def saved(self, report: SaveReport) -> None:
        """Append how many bytes of a save were copied by slices, and how many were read from live memory."""
        cost = report.cost
        self.write({"saved": report.checkpoint, "sliced": cost.fenced_bytes, "in_place": cost.in_place_bytes})

    def on_train_step_end(self, run_context: Any) -> None:
        """Digest what the next micro-step depends on, the batch of this one, and the draws after it."""
        params = run_context.original_args()
        batch = hashlib.sha256(b"".join(column.asnumpy().tobytes() for column in params.train_dataset_element))
        draws = {} if self._draws is None else self._draws.digests()
        digests = digests_of(params.train_network)
        self.write({"step": params.cur_step_num, **digests, "batch": batch.hexdigest(), "draws": draws})


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


def select_device(device: str) -> dict[str, str]:
    """Compute on ``device`` from now on; return its name and MindSpore's version, or why it cannot be used."""
    try:
        ms.set_device(device)
        (ms.Tensor([1.0]) + 1).asnumpy()
    except (RuntimeError, ValueError) as error:
        return {"mindspore": ms.__version__, "absent": str(error).partition(". ")[0].partition("\n")[0]}
    ms.set_deterministic(True)  # else two runs on a device may differ without any interruption
    return {"mindspore": ms.__version__, "device": device_name()}


def live(plan: Plan) -> None:
    """Resume or start the run of ``plan``, train it to its end, and write the accuracy on held-out digits."""
    if plan.device:
        about = select_device(plan.device)
        Trace(Path(plan.trace)).write(about)
        if "absent" in about:
            return
    ms.set_context(mode=ms.GRAPH_MODE if plan.mode == "graph" else ms.PYNATIVE_MODE)
    ms.set_seed(plan.seed)
    ms.manual_seed(plan.seed)  # set_seed does not seed this generator, and MindSpore 2.7 starts it at random
    digits = load_digits()
    network = digit_network(_HIDDEN if plan.device else 0)
    optimizer = nn.Adam(network.trainable_params(), learning_rate=0.01)
    loss = nn.WithLossCell(network, nn.CrossEntropyLoss())
    cell = AccumulationTrainCell(loss, optimizer, ACCUMULATION_STEPS, clip_norm=5.0)
    draws = Draws() if plan.device else None
    trace = Trace(Path(plan.trace), draws)

    storage = open_storage(plan.root)
    # Wait for saves, so that every death finds a checkpoint to resume from, even on slow storage.
    ckpt = CheckpointCallback(
        storage,
        save=SaveEvery(micro_steps=SAVE_EVERY_MICRO_STEPS),
        stateful={} if draws is None else {"dropout": draws.dropout},
        saving=Saving(when_busy="wait", window="slice" if plan.device else "auto", on_save=trace.saved),
        training=Training(read_only=[Trace, DemoKill]),  # else a save copies all at once
    )
    columns = {"image": digits.train_images, "label": digits.train_labels}
    data = ds.NumpySlicesDataset(columns, shuffle=True).batch(BATCH_SIZE)  # 30 batches per epoch, the last one smaller
    model = Model(cell)
    point = ckpt.resume(model, data, EPOCHS)
    begun = {"resumed_from": point.checkpoint, "batches_delivered": point.batches_delivered}
    trace.write({**begun, "restored": digests_of(cell)})
    updated = [*optimizer.parameters, *optimizer.moment1, *optimizer.moment2]
    before = [parameter.asnumpy().tobytes() for parameter in updated]
    others = [trace, DemoKill(plan, lambda: die_in_write(storage))]
    model.train(EPOCHS, data, callbacks=[*others, ckpt], initial_epoch=point.epoch)
    same = [
        parameter.name for parameter, held in zip(updated, before, strict=True) if parameter.asnumpy().tobytes() == held
    ]
    network.set_train(False)
    predicted = network(ms.Tensor(digits.test_images)).asnumpy().argmax(axis=1)
    accuracy = float((predicted == digits.test_labels).mean())
    trace.write({"accuracy": accuracy, "updated": len(updated), "stale": same})


if __name__ == "__main__":
    live(Plan(**json.loads(sys.argv[1])))
