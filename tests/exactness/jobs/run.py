"""The table of jobs, and what a job is given: where to save, and where to write what it trained."""

from __future__ import annotations

import json
import logging
import os
import random
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
import xxhash
from mindspore import nn

import ckptkit as ck
from ckptkit.mindspore.rng import capture_rng
from exactness.jobs.parts import EPOCHS


@dataclass(frozen=True)
class Job:
    """One training."""

    train: Callable[[Run], None]
    mode: str
    kill: int = 12
    stage: str = ""
    refused: tuple[str, ...] = ()
    by: Literal["first", "resumed"] = "first"
    trained: int = 1


JOBS: dict[str, Job] = {}


def job(mode: str, **options: Any) -> Callable[[Callable[[Run], None]], Callable[[Run], None]]:
    """Put a function into the table; `Job` has the options."""

    def add(train: Callable[[Run], None]) -> Callable[[Run], None]:
        JOBS[train.__name__] = Job(train, mode, **options)
        return train

    return add


class Run(logging.Handler):
    """Writes a line per micro-step and per warning, and dies after the micro-step of ``kill``."""

    def __init__(self, folder: Path | None, trace: Path, kill: int, deadly: str) -> None:
        super().__init__(logging.WARNING)
        self.folder = folder
        self._stage = ""
        self._trace = os.open(trace, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        self._kill, self._deadly = kill, deadly
        self._at = 0

    def enter(self, stage: str) -> None:
        """Say that another stage begins."""
        self._stage = stage
        self._write()

    def step(self, batch: Any, outputs: Any, **watched: Any) -> None:
        """Write what was trained and what a later micro-step depends on, and draw; call before it is saved."""
        self._at += 1
        leaves = digests({"batch": batch, "outputs": outputs, **watched, "generators": generators()})
        self._write(at=self._at, leaves=leaves)
        np.random.rand()
        random.random()
        if self._at == self._kill and self._stage == self._deadly:
            os.kill(os.getpid(), signal.SIGKILL)

    def emit(self, record: logging.LogRecord) -> None:
        self._write(at=self._at, warning=record.getMessage())

    def train(
        self, cell: Any, epochs: int, dataset: Any, *, root: str = "run", callbacks: Any = (), **also: Any
    ) -> None:
        """`Model.train` of a train cell or a model, with a save for every micro-step, each told of before."""
        run = self
        model = cell if isinstance(cell, ms.Model) else ms.Model(cell)

        class Telling(ms.train.Callback):
            def on_train_step_end(self, run_context: Any) -> None:
                params = run_context.original_args()
                run.step(params.train_dataset_element, params.net_outputs, cell=params.train_network)

        if self.folder is None:
            model.train(epochs, dataset, callbacks=[*callbacks, Telling()])
            return

        class Saving(ck.CheckpointCallback):
            def resume(self, *args: Any, **keywords: Any) -> ck.ResumePoint:
                point = super().resume(*args, **keywords)
                run._at = point.batches_delivered
                return point

        fixed = {"ignore": [run, "*: epochs"]}  # a later stage may train longer
        training = ck.Training(**fixed, **{name: also.pop(name) for name in ("cycle", "augmentation") if name in also})
        saving = ck.Saving(when_busy="wait")
        callback = Saving(
            self.folder / root, save=ck.SaveEvery(micro_steps=1), saving=saving, training=training, **also
        )
        callback.train(model, epochs, dataset, callbacks=[*callbacks, Telling()])

    def loop(self, cells: Any, data: Any, step: Any = None, **also: Any) -> None:
        """The guide's own loop: what is given by name is stored and told of."""
        names = ("cycle", "augmentation", "strict")
        cycle, augmentation, strict = (also.pop(name, None) for name in names)
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
        saving = ck.Saving(when_busy="wait")
        with ck.CheckpointManager(self.folder / "run", save=ck.SaveEvery(micro_steps=1), saving=saving) as manager:
            training = ck.Training(cycle=cycle, ignore=[self])
            state = ck.StateManager(cells, batches, training=training, strict=bool(strict), **also)
            self._at = manager.restore(state).batches_delivered
            for batch in batches:
                train(batch)
                manager.step(state)
            manager.save_final(state)

    def _write(self, **line: Any) -> None:
        os.write(self._trace, (json.dumps({"stage": self._stage, **line}) + "\n").encode())


def generators() -> dict[str, Any]:
    return {"python": random.getstate(), "numpy": np.random.get_state(), "mindspore": capture_rng()["mindspore"]}


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
