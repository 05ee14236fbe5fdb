"""MindSpore's own checkpoints under ckptkit's names, for ``--system ms-checkpoint``.

After `replace`, a job saves and resumes as MindSpore's guide to fault recovery shows: `mindspore.save_checkpoint` of
each cell, or `ModelCheckpoint`, then `load_checkpoint`, `load_param_into_net` and ``initial_epoch``. This does more
than the guide, which saves at the ends of epochs. It saves after every fifth batch, and goes on at that batch; the
counters of an `AccumulationTrainCell`, which lie in Python, are stored beside its parameters; and a cell that a loop of
one's own gives by name is stored. Nothing else of a script is, random state included, and nothing is named.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import mindspore as ms
import mindspore.dataset as ds
from mindspore import nn
from mindspore.train import CheckpointConfig, Model, ModelCheckpoint

import ckptkit as ck
from ckptkit.mindspore.train.cell import CycleCounters


@dataclasses.dataclass(frozen=True)
class Point:
    """Where a training continues."""

    epoch: int = 0
    batch: int = 0
    batches_delivered: int = 0
    checkpoint: str | None = None
    complete: bool = False


class Batches:
    """The batches that are left, as `ckptkit.data.resumable` has them; what is no pipeline is read again."""

    def __init__(self, data: Any, epochs: int, seed: int | None = None, *, as_dict: bool = False) -> None:
        self.epoch = self.batch = self.delivered = 0
        self.epochs_ended: list[Callable[[], None]] = []
        self._data, self._epochs, self._as_dict = data, epochs, as_dict
        if seed is not None:
            ds.config.set_seed(seed)

    def start(self, point: Point) -> None:
        self.epoch, self.batch, self.delivered = point.epoch, point.batch, point.batches_delivered

    def __iter__(self) -> Iterator[Any]:
        for epoch, batches in self._left():
            for batch in batches:
                self.batch = self.batch + 1 if epoch == self.epoch else 1
                self.epoch = epoch
                self.delivered += 1
                yield batch
            for end_epoch in self.epochs_ended:
                end_epoch()

    def _left(self) -> Iterator[tuple[int, Iterable[Any]]]:
        first, skipped = self.epoch, self.batch
        if not isinstance(self._data, ds.Dataset):
            for epoch in range(first, self._epochs):
                yield epoch, itertools.islice(self._data, skipped if epoch == first else 0, None)
            return
        if self.delivered >= self._epochs * self._data.get_dataset_size():
            return
        self._data.set_init_step(self.delivered)
        maker = self._data.create_dict_iterator if self._as_dict else self._data.create_tuple_iterator
        iterator = maker(num_epochs=self._epochs)
        self._data.set_init_step(0)
        for epoch in range(first, self._epochs):
            yield epoch, iterator


class StateManager:
    """The cells of a training, and its place in the data."""

    def __init__(self, cells: Any, data: Any = None, **named: Any) -> None:
        given = [*cells] if isinstance(cells, list | tuple) else [cells]
        given += [value for value in named.values() if isinstance(value, nn.Cell)]
        self._cells = [cell for cell in given if cell is not None and cell.parameters_dict()]
        self._trained = [cell for cell in given if isinstance(cell, ck.AccumulationTrainCell)]
        self._data, self._counted = data, 0
        if isinstance(data, Batches):
            data.epochs_ended += [cell.end_epoch for cell in self._trained]

    @property
    def delivered(self) -> int:
        if isinstance(self._data, Batches):
            return self._data.delivered
        return self._trained[0].counters.micro_steps if self._trained else self._counted

    def count_delivered(self, batches: int | None = None) -> None:
        self._counted = self._counted + 1 if batches is None else batches

    def iterator_made(self) -> None:
        if isinstance(self._data, ds.Dataset):
            self._data.set_init_step(0)

    def save(self, folder: Path) -> None:
        numbers = {"batches_delivered": self.delivered}
        if isinstance(self._data, Batches):
            numbers |= {"epoch": self._data.epoch, "batch": self._data.batch}
        folder.mkdir(parents=True, exist_ok=True)
        for number, cell in enumerate(self._cells):
            file = folder / f"{self.delivered:06d}-{number}.ckpt"
            ms.save_checkpoint(cell, str(file), append_dict=numbered(numbers | counters_of(cell)))

    def restore(self, folder: Path) -> Point:
        files = sorted(folder.glob("*.ckpt"))[-len(self._cells) :]
        numbers: dict[str, int] = {}
        for cell, file in zip(self._cells, files, strict=bool(files)):
            numbers |= load(cell, file)
        point = Point(**numbers, checkpoint=files[-1].name if files else None)
        self._counted = point.batches_delivered
        if isinstance(self._data, Batches):
            self._data.start(point)
        elif isinstance(self._data, ds.Dataset):
            epoch, batch = divmod(self._counted, self._data.get_dataset_size())
            self._data.set_init_step(self._counted)
            return dataclasses.replace(point, epoch=epoch, batch=batch)
        return point


def counters_of(cell: nn.Cell) -> dict[str, int]:
    return dataclasses.asdict(cell.counters) if isinstance(cell, ck.AccumulationTrainCell) else {}


def numbered(numbers: Mapping[str, int]) -> dict[str, int]:
    return {f"number.{name}": value for name, value in numbers.items()}


def load(cell: nn.Cell, file: Path) -> dict[str, int]:
    """Load a file into a cell; return the numbers of the position."""
    loaded = ms.load_checkpoint(str(file))
    stored = [name for name in loaded if name.startswith("number.")]
    numbers = {name.removeprefix("number."): int(loaded.pop(name).asnumpy()) for name in stored}
    ms.load_param_into_net(cell, loaded)
    del loaded
    gc.collect()  # or a life's trace has these parameters, too
    if isinstance(cell, ck.AccumulationTrainCell):
        cell.load_counters(
            CycleCounters(**{field.name: numbers.pop(field.name) for field in dataclasses.fields(CycleCounters)})
        )
    return numbers


class CheckpointManager:
    """Saves after every so many batches, in a loop of one's own."""

    after_step: Callable[[int], None]

    def __init__(self, root: str | os.PathLike[str], *, save: ck.SaveEvery, **_: Any) -> None:
        assert save.micro_steps is not None
        self._root, self._every = Path(root), save.micro_steps

    def restore(self, state: StateManager) -> Point:
        return state.restore(self._root)

    def step(self, state: StateManager, metrics: Any = None) -> None:
        if state.delivered % self._every == 0:
            self.save(state)
        self.after_step(state.delivered)

    def save(self, state: StateManager, metrics: Any = None) -> None:
        state.save(self._root)

    save_final = save

    def fence(self) -> None:
        """Do nothing: a save is over when it returns."""

    close = fence

    def __enter__(self) -> CheckpointManager:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing."""


class Loop:
    """The loop of `ckptkit.loop`."""

    def __init__(
        self,
        root: str,
        data: Any,
        epochs: int,
        *,
        train: Any,
        save: ck.SaveEvery,
        stateful: Mapping[str, Any] | None = None,
        seed: int | None = None,
        as_dict: bool = False,
        **_: Any,
    ) -> None:
        self._manager = CheckpointManager(root, save=save)
        self._batches = Batches(data, epochs, seed, as_dict=as_dict)
        self._state = StateManager(train, self._batches, **(stateful or {}))
        self.point = self._manager.restore(self._state)

    @property
    def epoch(self) -> int:
        return self._batches.epoch

    @property
    def step(self) -> int:
        return max(self._batches.delivered - 1, 0)

    def __iter__(self) -> Iterator[Any]:
        for batch in self._batches:
            yield batch
            self._manager.step(self._state)
        self._manager.save_final(self._state)


class CheckpointCallback(ModelCheckpoint):
    """MindSpore's own callback, which also keeps the place."""

    after_step: Callable[[int], None]

    def __init__(self, root: str | os.PathLike[str], *, save: ck.SaveEvery, **_: Any) -> None:
        numbers = numbered({"batches_delivered": 0, **{field.name: 0 for field in dataclasses.fields(CycleCounters)}})
        config = CheckpointConfig(save.micro_steps, keep_checkpoint_max=100, append_info=[numbers])
        self._root, self._begun, self._numbers = Path(root), 0, config.append_dict
        super().__init__("model", str(root), config)

    def train(self, model: Model, epochs: int, data: ds.Dataset, **options: Any) -> Point:
        return self._run(model, model.train, epochs, data, **options)

    def fit(self, model: Model, epochs: int, data: ds.Dataset, *valid: ds.Dataset, **options: Any) -> Point:
        return self._run(model, model.fit, epochs, data, *valid, **options)

    def attach(self) -> contextlib.AbstractContextManager[None]:
        train = Model.train

        def attached(model: Model, epochs: int, data: ds.Dataset, **options: Any) -> None:
            Model.train = train
            self.train(model, epochs, data, **options)

        Model.train = attached
        return contextlib.nullcontext()

    def _run(
        self, model: Model, train: Any, epochs: int, *data: ds.Dataset, callbacks: Any = None, **options: Any
    ) -> Point:
        others = [] if callbacks is None else callbacks if isinstance(callbacks, list) else [callbacks]
        point = self.resume(model, data[0], epochs)
        if not point.complete:
            train(epochs, *data, callbacks=[*others, self], initial_epoch=point.epoch, **options)
        return point

    def resume(self, model: Model, data: ds.Dataset, epochs: int) -> Point:
        files = sorted(self._root.glob("*.ckpt"), key=lambda file: file.stat().st_mtime_ns)
        if files:
            self._begun = load(model.train_network, files[-1])["batches_delivered"]
        epoch, batch = divmod(self._begun, data.get_dataset_size())
        data.set_init_step(self._begun)
        return Point(epoch, batch, self._begun, files[-1].name if files else None, epoch >= epochs)

    def on_train_step_end(self, run_context: Any) -> None:
        training = run_context.original_args()
        delivered = self._begun + training.cur_step_num
        self._numbers.update(numbered({"batches_delivered": delivered, **counters_of(training.train_network)}))
        super().on_train_step_end(run_context)
        self.after_step(delivered)

    def on_train_epoch_end(self, run_context: Any) -> None:
        if isinstance(cell := run_context.original_args().train_network, ck.AccumulationTrainCell):
            cell.end_epoch()


def replace(after_step: Callable[[int], None]) -> None:
    """Put these classes in the place of ckptkit's; ``after_step`` gets the number of each batch that was trained."""
    CheckpointManager.after_step = CheckpointCallback.after_step = staticmethod(after_step)
    ck.CheckpointManager, ck.CheckpointCallback = CheckpointManager, CheckpointCallback
    ck.StateManager, ck.loop, ck.data.resumable = StateManager, Loop, Batches
