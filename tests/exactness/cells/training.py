"""The process that is killed: ``python -m exactness.cells.training '<job as JSON>'``.

It trains one kind after the other, each under a run root of its own, and writes after every micro-step the digest
of everything that a later one depends on.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import sys
from pathlib import Path

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
import xxhash
from mindspore.train import Callback

import ckptkit as ck
from ckptkit.mindspore.rng import capture_rng
from ckptkit.mindspore.state.holders import stateful_of
from exactness.cells.data import DATA, Data
from exactness.cells.job import BATCHES_PER_EPOCH, EPOCHS, Job
from exactness.cells.kinds import KINDS, WITH_MODEL, Training

SEED = 7


class LeftError(Exception):
    """Ends the training of one kind within `Model.train`."""


class Trace(Callback):
    """Digests, one line of JSON per micro-step; as a callback it stands before ckptkit's."""

    def __init__(self, path: str, kind: str, training: Training) -> None:
        self._file = Path(path)
        self._kind = kind
        self._cells = training.cells if isinstance(training.cells, list) else [training.cells]
        self._held = {name: stateful_of(name, one) for name, one in training.stateful.items()}
        self._file.touch()

    def on_train_step_end(self, run_context) -> None:
        params = run_context.original_args()
        self.step(params.cur_step_num, params.train_dataset_element, params.net_outputs)

    def step(self, at: int, batch, outputs) -> None:
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        leaves = {f"batch.{place}": digest(one.asnumpy()) for place, one in enumerate(batch)}
        for parameter in itertools.chain.from_iterable(cell.get_parameters() for cell in self._cells):
            leaves[parameter.name] = digest(parameter.asnumpy())
        for name, held in self._held.items():
            for place, (_, array) in held.state_dict().items():
                leaves[f"{name}.{place}"] = digest(array)
        leaves["rng"] = digest(repr_of(capture_rng()))
        leaves.update({f"outputs.{place}": digest(one.asnumpy()) for place, one in enumerate(outputs)})
        values = [float(one.asnumpy().reshape(-1)[0]) for one in outputs]
        line = {"kind": self._kind, "at": at, "leaves": leaves, "outputs": [repr(one) for one in values]}
        with self._file.open("a") as file:
            file.write(json.dumps(line) + "\n")


class Leave(Callback):
    """Stands after ckptkit's callback, which saves the last micro-step of an epoch at the epoch's end."""

    def __init__(self, until: int | None) -> None:
        self._until = until

    def on_train_step_end(self, run_context) -> None:
        at = run_context.original_args().cur_step_num
        if at == self._until and at % BATCHES_PER_EPOCH:
            raise LeftError

    def on_train_epoch_end(self, run_context) -> None:
        if run_context.original_args().cur_step_num == self._until:
            raise LeftError


def digest(array: np.ndarray) -> str:
    return xxhash.xxh3_128_hexdigest(np.ascontiguousarray(array).tobytes())


def repr_of(state) -> np.ndarray:
    with np.printoptions(threshold=sys.maxsize):
        return np.frombuffer(repr(state).encode(), np.uint8)


def draw() -> None:
    """What a user's own loop does: it draws from the process-wide generators."""
    np.random.rand()
    random.random()


IGNORED = ("*until", "*trace*")  # when this process leaves, and where it writes


def own_loop(training: Training, data: Data, root: Path | None, trace: Trace, until: int | None) -> None:
    if root is None:
        for at, batch in enumerate(undisturbed_batches(data.build()), 1):
            trace.step(at, batch, training.step(*batch))
            draw()
        return
    batches = ck.data.resumable(data.build(), EPOCHS, augmentation=data.augmentation)
    state = ck.StateManager(
        training.cells,
        batches,
        training=ck.Training(cycle=training.cycle, ignore=IGNORED),
        strict=True,
        **training.stateful,
    )
    with ck.CheckpointManager(root, save=ck.SaveEvery(micro_steps=1), saving=ck.Saving(when_busy="wait")) as manager:
        at = manager.restore(state).batches_delivered
        for batch in batches:
            at += 1
            trace.step(at, batch, training.step(*batch))
            draw()
            manager.step(state)
            if at == until:
                return


def undisturbed_batches(dataset):
    """The batches of all epochs as a loop gets them that knows nothing of ckptkit."""
    once = dataset.create_tuple_iterator(num_epochs=EPOCHS) if isinstance(dataset, ds.Dataset) else dataset
    for _ in range(EPOCHS):
        yield from once


def with_model(training: Training, data: Data, root: Path | None, trace: Trace, until: int | None) -> None:
    dataset = data.build()
    if root is None:
        training.model.train(EPOCHS, dataset, callbacks=[trace])
        return
    ckpt = ck.CheckpointCallback(
        root,
        save=ck.SaveEvery(micro_steps=1),
        saving=ck.Saving(when_busy="wait"),
        training=ck.Training(cycle=training.cycle, augmentation=data.augmentation, ignore=IGNORED),
        strict=True,
        stateful=training.stateful,
    )
    point = ckpt.resume(training.model, dataset, EPOCHS)
    try:
        training.model.train(EPOCHS, dataset, callbacks=[trace, ckpt, Leave(until)], initial_epoch=point.epoch)
    except LeftError:
        return


def main(job: Job) -> None:
    ms.set_context(mode=ms.GRAPH_MODE if job.mode == "graph" else ms.PYNATIVE_MODE, device_target="CPU")
    for number, kind in enumerate(KINDS):
        if kind not in job.kinds:
            continue
        ms.set_seed(SEED)
        ms.manual_seed(SEED)  # set_seed leaves this generator alone, and MindSpore 2.7 begins it at random
        training = KINDS[kind]()
        trace = Trace(job.trace, kind, training)
        root = Path(job.folder) / str(number) if job.folder is not None else None
        assert (training.model is not None) == (kind in WITH_MODEL)
        run = own_loop if training.model is None else with_model
        run(training, DATA[job.data], root, trace, job.until)
    if job.until is not None:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(Job.loads(sys.argv[1]))
