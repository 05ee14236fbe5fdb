"""Counts through how many frames and modules of ckptkit a save, a restore and a preemption pass.

``python -m benchmarks.call_paths`` trains a small network by `Model.train`, saves once, resumes, and is asked to end by
SIGTERM. It traces all calls of ckptkit's functions meanwhile:

* save: from ``CheckpointCallback.on_train_step_end`` to the first ``pwrite`` of a shard. Frames are those below the
  callback where the writer is started, and those of the writer at the write. Modules are those of these frames, and
  all that were entered on the way.
* restore: modules that were entered from ``CheckpointCallback.resume`` to the first step.
* SIGTERM: modules that were entered from the signal to the exit.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn
from mindspore.dataset import NumpySlicesDataset
from mindspore.train import Callback, Model

import ckptkit as ck


class CallTrace:
    """Notes the ckptkit functions that run while it is on, in all threads that begin meanwhile and in this one."""

    def __init__(self, begin: str | None = None, end: str | None = None) -> None:
        self._begin, self._end = begin, end
        self.entered: dict[str, None] = {}  # modules, in order
        self.stacks: list[list[str]] = []
        self._is_on = begin is None

    @contextlib.contextmanager
    def recording(self) -> Iterator[CallTrace]:
        """Record within the block."""
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        try:
            yield self
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]  # documented

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and (module := _module_of(frame)) is not None:
            function = frame.f_code.co_qualname if sys.version_info >= (3, 11) else frame.f_code.co_name
            self._is_on = function != self._end and (self._is_on or function == self._begin)
            if self._is_on:
                self.entered.setdefault(module)
        elif event == "c_call" and self._is_on:
            name, stack = getattr(argument, "__name__", ""), _stack_of(frame)
            is_end = name == self._end and not any("_reserve" in function for function in stack)  # of space, before
            if is_end or name == "start_new_thread":
                self.stacks.append(stack)
            if is_end:
                self._is_on, self._begin = False, None


def _module_of(frame: FrameType) -> str | None:
    name = str(frame.f_globals.get("__name__"))
    return name.removeprefix("ckptkit.") if name.startswith("ckptkit.") else None


def _stack_of(frame: FrameType | None) -> list[str]:
    stack = []
    while frame is not None:
        if (module := _module_of(frame)) is not None:
            stack.append(f"{module}.{frame.f_code.co_name}")
        frame = frame.f_back
    return stack[::-1]


class _AskToEnd(Callback):  # type: ignore[misc]
    """Sends SIGTERM to its own process in a step."""

    def on_train_step_begin(self, run_context: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


def _train(root: str, *callbacks: Callback, epochs: int) -> None:
    network = nn.Dense(4, 1)
    loss = nn.WithLossCell(network, nn.MSELoss())
    cell = ck.AccumulationTrainCell(loss, nn.Momentum(network.trainable_params(), 0.1, 0.9), 2)
    rows = np.arange(32, dtype=np.float32).reshape(8, 4)
    data = NumpySlicesDataset({"x": rows, "y": rows[:, :1]}, shuffle=False).batch(2)
    callback = ck.CheckpointCallback(root, save=ck.SaveEvery(optimizer_steps=1))
    callback.train(Model(cell), epochs, data, callbacks=[*callbacks], dataset_sink_mode=False)


def main() -> None:
    """Print the table."""
    logging.disable()
    ms.set_seed(1)
    with tempfile.TemporaryDirectory() as folder:
        with CallTrace("CheckpointCallback.on_train_step_end", "pwrite").recording() as save:
            _train(f"{folder}/run", epochs=1)
        with CallTrace("CheckpointCallback.resume", "CheckpointCallback.on_train_step_begin").recording() as restore:
            _train(f"{folder}/run", epochs=2)
        with CallTrace("SignalWatch._handle").recording() as preemption, contextlib.suppress(ck.Preempted):
            _train(f"{folder}/run", _AskToEnd(), epochs=3)
    *before, writer = save.stacks
    training = next(stack for stack in before[::-1] if any("on_train_step_end" in name for name in stack))
    training = training[next(at for at, name in enumerate(training) if "on_train_step_end" in name) :]
    print("| way | frames | modules on the stack | modules entered |\n|---|---:|---:|---:|")
    modules = {name.rpartition(".")[0] for name in (*training, *writer)}
    print(f"| save: callback to `pwrite` | {len(training) + len(writer)} | {len(modules)} | {len(save.entered)} |")
    print(f"| restore | | | {len(restore.entered)} |")
    print(f"| SIGTERM to the exit | | | {len(preemption.entered)} |")
    if "-v" in sys.argv:
        print(*training, "--", *writer, "", *save.entered, "", *restore.entered, "", *preemption.entered, sep="\n")


if __name__ == "__main__":
    main()
