"""What a training is given: where to save, where to write what it trained, and when to die."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
import xxhash
from mindspore import nn

import ckptkit as ck
from ckptkit.mindspore.rng import capture_rng
from exactness.cells.data import EPOCHS

SAVES = {"save": ck.SaveEvery(micro_steps=1), "saving": ck.Saving(when_busy="wait")}


class Run:
    """Trains, with ckptkit if there is a ``folder``; writes a line per micro-step, and dies after that of ``kill``."""

    def __init__(self, folder: Path | None, trace: Path, kill: int) -> None:
        self.folder = folder
        self._trace = os.open(trace, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        self._kill = kill
        self._at = 0

    def step(self, batch: Any, outputs: Any, **watched: Any) -> None:
        """Write what was trained and what a later micro-step depends on, and draw; call before it is saved."""
        self._at += 1
        leaves = digests({"batch": batch, "outputs": outputs, **watched, "generators": capture_rng()})
        os.write(self._trace, (json.dumps({"at": self._at, "leaves": leaves}) + "\n").encode())
        np.random.rand()
        random.random()
        if self._at == self._kill:
            os.kill(os.getpid(), signal.SIGKILL)

    def train(self, model: ms.Model, dataset: Any, *, cycle: Any, **also: Any) -> None:
        """`Model.train`, with a save for every micro-step, each written before."""
        run = self

        class Writing(ms.train.Callback):
            def on_train_step_end(self, run_context: Any) -> None:
                params = run_context.original_args()
                run.step(params.train_dataset_element, params.net_outputs, cell=params.train_network)

        if self.folder is None:
            model.train(EPOCHS, dataset, callbacks=[Writing()])
            return

        class Saving(ck.CheckpointCallback):
            def resume(self, *args: Any, **keywords: Any) -> ck.ResumePoint:
                point = super().resume(*args, **keywords)
                run._at = point.batches_delivered
                return point

        training = ck.Training(ignore=[run], cycle=cycle, augmentation=also.pop("augmentation"))
        callback = Saving(self.folder / "run", **SAVES, training=training, **also)
        callback.train(model, EPOCHS, dataset, callbacks=[Writing()])

    def loop(
        self, cells: Any, data: Any, step: Any, *, cycle: Any, augmentation: Any, strict: bool, **also: Any
    ) -> None:
        """The guide's own loop: what is given by name is stored and written."""
        step = step or cells

        def train(batch: Any) -> None:
            self.step(batch, step(*batch), cells=cells, **also)

        if self.folder is None:
            once = data.create_tuple_iterator(num_epochs=EPOCHS) if isinstance(data, ds.Dataset) else data
            for _ in range(EPOCHS):
                for batch in once:
                    train(batch)
            return
        batches = ck.data.resumable(data, EPOCHS, augmentation=augmentation)
        with ck.CheckpointManager(self.folder / "run", **SAVES) as manager:
            training = ck.Training(cycle=cycle, ignore=[self])
            state = ck.StateManager(cells, batches, training=training, strict=strict, **also)
            self._at = manager.restore(state).batches_delivered
            for batch in batches:
                train(batch)
                manager.step(state)
            manager.save_final(state)


def digests(value: Any, name: str = "") -> dict[str, str]:
    """The digest of each leaf by its name: parameters of cells, states of objects, members of containers."""
    if isinstance(value, nn.Cell):
        value = {parameter.name: parameter for parameter in value.get_parameters()}
    elif hasattr(value, "__dict__") and not isinstance(value, ms.Tensor):
        kinds = (bool, int, float, list, ms.Tensor)
        value = {name: member for name, member in vars(value).items() if isinstance(member, kinds)}
    if isinstance(value, Mapping):
        members = list(value.items())
    elif isinstance(value, (list, tuple)):
        members = list(enumerate(value))
    else:
        return {name: digest(value)}
    leaves = {name: f"{type(value).__name__} of {len(members)}"}
    for key, member in members:
        leaves.update(digests(member, f"{name}.{key}"))
    return leaves


def digest(value: Any) -> str:
    array = value.asnumpy() if isinstance(value, ms.Tensor) else value
    if isinstance(array, (np.ndarray, np.generic)):
        data = np.ascontiguousarray(array).tobytes()
        return f"{array.dtype}{array.shape}{xxhash.xxh3_128_hexdigest(data)}"
    return xxhash.xxh3_128_hexdigest(repr(array).encode())
