"""Makes the golden runs of the current format version: ``python tests/exactness/golden/make_golden.py``.

They are committed once per format version and never made again for it: what they prove is that what users have on
their disks stays readable while the code changes. Three runs: one of NumPy state, which has a frozen shard, a mid-
cycle and a boundary checkpoint, user state of every kind and a void folder; one of MindSpore; and one of two ranks,
with leaves that are replicated, each rank's own, and cut.
"""

import sys
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
from support.thread_ranks import ThreadWorld, results_of, run_ranks

from ckptkit.core.contents import Capture, Contents, WantedPart
from ckptkit.core.placement import Box
from ckptkit.core.process_group import World
from ckptkit.core.save_policy import SaveEvery
from ckptkit.core.tensors import leaf_of
from ckptkit.format.documents import FORMAT_VERSION, digest_of, encode
from ckptkit.format.documents import Void as VoidDocument
from ckptkit.manager.manager import CheckpointManager
from ckptkit.manager.options import Saving
from ckptkit.run.keep_policy import KeepLatest
from ckptkit.storage import LocalStorage
from ckptkit.testing.state import NumpyRun

HOME = Path(__file__).parent / f"v{FORMAT_VERSION}"
OPTIONS = {"save": SaveEvery(micro_steps=2), "keep": KeepLatest(9), "saving": Saving(when_busy="wait")}
NUMPY_STEPS = 10
RANKS_STEPS = 6
MINDSPORE_STEPS = 7


def numpy_run() -> NumpyRun:
    return NumpyRun(seed=11, accumulation_steps=4, size=6)


def make_numpy(root: Path) -> None:
    run = numpy_run()
    with CheckpointManager(root, **OPTIONS) as manager:
        manager.restore(run)
        for _ in range(NUMPY_STEPS):
            run.train_step()
            manager.step(run, metrics={"loss": 0.5, "broken": float("nan")})
    void = encode(VoidDocument(void_by="0" * 32))
    LocalStorage(root).create("checkpoints/a000001-c0000000009-m0001/COMMIT", void)


class CutRun(NumpyRun):
    """A rank that also holds half of a table, three rows of six."""

    WHOLE: ClassVar[tuple[int, int]] = (6, 4)

    def __init__(self, world: World) -> None:
        super().__init__(seed=11, accumulation_steps=4, size=6, world=world)
        whole = np.arange(24, dtype=np.float32).reshape(self.WHOLE)
        self.box = Box(self.WHOLE, (3 * world.rank, 0))
        self.table = whole[3 * world.rank : 3 * world.rank + 3].copy()

    def capture(self) -> Capture:
        capture = super().capture()
        table = leaf_of("table", self.table, role="weights", placement=self.box)
        return replace(capture, leaves=(*capture.leaves, table))

    def apply(self, contents: Contents) -> None:
        memory = memoryview(bytearray(self.table.nbytes))
        contents.read_parts([WantedPart("table", self.box, self.table.shape, memory)])
        others = {name: one for name, one in contents.entries.items() if name != "table"}
        super().apply(replace(contents, entries=others))
        self.table[:] = np.frombuffer(memory, np.float32).reshape(self.table.shape)


def train_ranks(root: Path, steps: int) -> list[str]:
    """Train two ranks up to ``steps`` micro-steps since the run's start; returns their digests, tables included."""

    def train(world: ThreadWorld) -> str:
        run = CutRun(world)
        run.table *= -1  # what no restore leaves as it is
        with CheckpointManager(root, **OPTIONS) as manager:
            if not manager.restore(run).batches_delivered:
                run.table *= -1
            for _ in run.train_until(steps):
                manager.step(run)
        return f"{run.digest()} {digest_of(run.table.tobytes())}"

    return results_of(run_ranks(2, train))


class UserState:
    """State of every kind that the tree encoding knows."""

    VALUE: ClassVar[dict[object, object]] = {
        "none": None,
        "numbers": [1, -(2**70), 0.1, float("inf"), True],
        "text": "数据",
        "bytes": b"\x00\xff",
        "tuple": (1, (2, "3")),
        3: {"not a string": np.float32(1.5)},
        "array": np.arange(6, dtype=np.int16).reshape(2, 3),
    }

    def __init__(self) -> None:
        self.loaded: object = None

    def state_dict(self) -> object:
        return self.VALUE

    def load_state_dict(self, state: object) -> None:
        self.loaded = state


def mindspore_training() -> tuple[object, object]:
    """A cell that has not trained yet, and its data."""
    import mindspore as ms
    import mindspore.dataset as ds
    from mindspore import nn

    import ckptkit as ck

    ms.set_context(mode=ms.PYNATIVE_MODE)
    ms.set_seed(4)
    network = nn.WithLossCell(nn.Dense(3, 2), nn.MSELoss())
    cell = ck.AccumulationTrainCell(network, nn.Adam(network.trainable_params(), 0.1), 3, clip_norm=1.0)
    cell.set_train()
    x = np.random.RandomState(0).randn(10, 3).astype(np.float32)
    data = ds.NumpySlicesDataset({"x": x, "y": x[:, :2].copy()}, shuffle=True).batch(2)
    return cell, data


def train_mindspore(root: Path, steps: int, user: UserState) -> object:
    """Train up to ``steps`` micro-steps since the run's start; returns the cell."""
    import ckptkit as ck

    cell, data = mindspore_training()
    with ck.CheckpointManager(root, save=ck.SaveEvery(micro_steps=1), saving=ck.Saving(when_busy="wait")) as manager:
        state = ck.StateManager(cell, data, user=user)
        manager.restore(state)
        batches = data.create_tuple_iterator(num_epochs=3)
        state.iterator_made()
        while cell.counters.micro_steps < steps:
            for batch in batches:
                cell(*batch)
                manager.step(state)
                if cell.counters.micro_steps == steps:
                    break
    return cell


if __name__ == "__main__":
    if HOME.exists():
        sys.exit(f"{HOME} exists: goldens are made once per format version")
    make_numpy(HOME / "numpy")
    train_mindspore(HOME / "mindspore", MINDSPORE_STEPS, UserState())
    train_ranks(HOME / "ranks", RANKS_STEPS)
