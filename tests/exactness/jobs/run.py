"""What a job is given: where to save, and where to tell what it trained."""

from __future__ import annotations

import json
import logging
import os
import random
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import xxhash
from mindspore import nn
from support.options import grouped

import ckptkit as ck
from ckptkit.mindspore.rng import capture_rng


class Run(logging.Handler):
    """Writes a line per micro-step and per warning, and dies after the micro-step that it was told.

    Args:
        folder: For the runs and the files of the job.
        trace: The file to write.
        kill: The micro-step; None lives on.

    Attributes:
        root: The run root.
        part: Of a job with several runs, the one that is trained.
    """

    def __init__(self, folder: Path, trace: Path, kill: int | None) -> None:
        super().__init__(logging.WARNING)
        self.folder = folder
        self.root = folder / "run"
        self.part = ""
        self._trace = os.open(trace, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        self._kill = kill
        self._at = 0
        self._part_of_death: str | None = None

    def enter(self, part: str) -> None:
        """Tell that another run begins."""
        self.part = part
        self._write(event="part", at=0)

    def dies_in(self, part: str) -> None:
        """Tell which of several runs is killed, at a micro-step of it."""
        self._part_of_death = part

    def begin(self, point: ck.ResumePoint) -> None:
        """Tell where a start goes on."""
        self._at = point.batches_delivered
        self._write(event="begin", at=self._at)

    def step(self, batch: Any, outputs: Any, **watched: Any) -> None:
        """Tell what was trained and what a later micro-step depends on; call before it is saved."""
        self._at += 1
        leaves = leaves_of({"batch": batch, "outputs": outputs, **watched, "rng": generators()})
        self._write(event="step", at=self._at, leaves=leaves)
        if self._at == self._kill and self._part_of_death in (None, self.part):
            os.kill(os.getpid(), signal.SIGKILL)

    def emit(self, record: logging.LogRecord) -> None:
        self._write(event="warning", at=self._at, words=record.getMessage())

    def manager(self, **options: Any) -> ck.CheckpointManager:
        """One that saves every micro-step."""
        every = {"save": ck.SaveEvery(micro_steps=1), "when_busy": "wait"}
        return ck.CheckpointManager(self.root, **grouped(**{**every, **options}))

    def callback(self, **options: Any) -> ck.CheckpointCallback:
        """One that saves every micro-step, and tells of it before."""
        run, watched = self, options.pop("watched", {})

        class Telling(ck.CheckpointCallback):
            def resume(self, *args: Any, **keywords: Any) -> ck.ResumePoint:
                point = super().resume(*args, **keywords)
                run.begin(point)
                return point

            def on_train_step_end(self, run_context: Any) -> None:
                params = run_context.original_args()
                run.step(params.train_dataset_element, params.net_outputs, cell=params.train_network, **watched)
                super().on_train_step_end(run_context)

        return Telling(self.root, **grouped(**{"save": ck.SaveEvery(micro_steps=1), "when_busy": "wait", **options}))

    def train(self, model: ms.Model, epochs: int, dataset: Any, callbacks: Any = None, **options: Any) -> None:
        """`Model.train` with such a callback."""
        self.callback(**options).train(model, epochs, dataset, callbacks=callbacks)

    def loop(self, cells: Any, batches: Any, step: Any = None, **stateful: Any) -> None:
        """The guide's own loop: what is given by name is stored, and told of."""
        with self.manager() as manager:
            state = ck.StateManager(cells, batches, **stateful)
            self.begin(manager.restore(state))
            for batch in batches:
                outputs = (step or cells)(*batch)
                self.step(batch, outputs, cells=cells, **stateful)
                manager.step(state)
            manager.save_final(state)

    def _write(self, **line: Any) -> None:
        os.write(self._trace, (json.dumps({"part": self.part, **line}) + "\n").encode())


def generators() -> dict[str, Any]:
    return {"python": random.getstate(), "numpy": np.random.get_state(), "mindspore": capture_rng()["mindspore"]}


def leaves_of(value: Any, name: str = "") -> dict[str, str]:
    """The digest of everything in it, by name."""
    if isinstance(value, nn.Cell):
        value = {parameter.name: parameter for parameter in value.get_parameters()}
    elif isinstance(value, np.random.Generator):
        value = value.bit_generator.state
    elif hasattr(value, "state_dict"):
        value = value.state_dict()
    elif not isinstance(
        value, (ms.Tensor, np.ndarray, np.generic, str, bytes, int, float, list, tuple, Mapping, type(None))
    ):
        value = {key: one for key, one in vars(value).items() if isinstance(one, (ms.Tensor, np.ndarray, int, float))}
    if isinstance(value, Mapping):
        items = list(value.items())
    elif isinstance(value, (list, tuple)) and not all(isinstance(one, (int, float)) for one in value):
        items = list(enumerate(value))
    else:
        return {name: digest_of(value)}
    found = {}
    for key, one in items:
        found.update(leaves_of(one, f"{name}.{key}" if name else str(key)))
    return found


def digest_of(value: Any) -> str:
    array = value.asnumpy() if isinstance(value, ms.Tensor) else value
    if isinstance(array, np.ndarray):
        return f"{array.dtype}{array.shape}" + xxhash.xxh3_128_hexdigest(np.ascontiguousarray(array).tobytes())
    return xxhash.xxh3_128_hexdigest(repr(array).encode())
