"""One's own loop over resumable batches together with what the train cell and the manager do at ends of epochs."""

from __future__ import annotations

import numpy as np
import pytest
from mindspore import nn, ops
from support.own_loop import OwnLoop
from support.training import accumulation_cell, begin_process, pipeline

import ckptkit as ck

EPOCHS = 3
SIZE = 6  # batches per epoch


class Quiet(nn.Cell):
    def __init__(self):
        super().__init__()
        self.out = nn.Dense(6, 3)

    def construct(self, x, y):
        return ops.square(self.out(x) - y).mean()


def rows():
    rng = np.random.default_rng(0)
    return [(rng.random((2, 6), np.float32), rng.random((2, 3), np.float32)) for _ in range(SIZE)]


class Unsized:
    def __iter__(self):
        return iter(rows())


class Eager:
    """Draws the order of an epoch from the global generator at once, not at the first batch."""

    def __iter__(self):
        return iter([rows()[index] for index in np.random.permutation(SIZE)])


class Life(OwnLoop):
    """Draws in every micro-step; ``change`` gets the first column of each batch before it is trained."""

    def __init__(self, root, make=rows, *, k=4, epochs=EPOCHS, remainder="carry", change=None, **options):
        begin_process()
        cell = accumulation_cell(k, network=Quiet, remainder=remainder)
        super().__init__(root, cell, ck.data.resumable(make(), epochs), keep=ck.KeepLatest(99), **options)
        self.change = change

    def train(self, batch):
        if self.change is not None:
            self.change(batch[0])
        super().train(batch)
        np.random.rand()


def places(root):
    names = [one.name.split("-") for one in ck.CheckpointManager(root).checkpoints()]
    return [(int(cycle[1:]), int(micro_step[1:])) for _, cycle, micro_step in names]


def small_pipeline():
    return pipeline(SIZE * 4, 4)


@pytest.mark.covering(1)
@pytest.mark.parametrize("make", [rows, small_pipeline])
@pytest.mark.parametrize("remainder", ["flush", "drop"])
def test_saves_see_boundary_at_epoch_end(tmp_path, remainder, make):
    """K is larger than an epoch, so that there are no others."""
    options = {"k": 8, "remainder": remainder, "save": ck.SaveEvery(optimizer_steps=1)}
    expected = Life(tmp_path / "whole", make, **options).run()
    assert places(tmp_path / "whole") == [(1, 0), (2, 0), (3, 0)]
    assert expected.cell.counters.updates == (3 if remainder == "flush" else 0)
    Life(tmp_path / "run", make, **options).run(until=15)
    resumed = Life(tmp_path / "run", make, **options).run()
    assert resumed.steps == {step: expected.steps[step] for step in range(13, 19)}


@pytest.mark.parametrize("mid_cycle", [pytest.param("align", marks=pytest.mark.extended), "rewind"])
def test_aligned_and_rewound_saves_see_it_too(tmp_path, mid_cycle):
    options = {"k": 4, "remainder": "flush", "save": ck.SaveEvery(micro_steps=1), "mid_cycle": mid_cycle}
    expected = Life(tmp_path / "whole", **options).run()
    cycles = range(1, 7) if mid_cycle == "align" else range(7)
    assert places(tmp_path / "whole") == [(cycle, 0) for cycle in cycles]
    for until, begins in ((8, 6), (12, 12), (17, 16)):
        root = tmp_path / str(until)
        Life(root, **options).run(until=until)
        resumed = Life(root, **options).run()
        assert resumed.steps == {step: expected.steps[step] for step in range(begins + 1, 19)}


@pytest.mark.parametrize("until", [6, 12, *(pytest.param(at, marks=pytest.mark.extended) for at in (5, 7, 18))])
def test_next_batch_ends_epoch_of_unknown_size(tmp_path, until):
    options = {"remainder": "flush", "save": ck.SaveEvery(micro_steps=1)}
    expected = Life(tmp_path / "whole", Unsized, **options).run()
    assert expected.cell.counters.updates == 6
    Life(tmp_path / "run", Unsized, **options).run(until=until)
    resumed = Life(tmp_path / "run", Unsized, **options).run()
    assert resumed.steps == {step: expected.steps[step] for step in range(until + 1, 19)}
    assert resumed.cell.counters == expected.cell.counters


def test_eager_order_is_redrawn_at_run_start(tmp_path):
    expected = Life(tmp_path / "whole", Eager, epochs=1, save=ck.SaveEvery(micro_steps=99)).run()
    options = {"epochs": 1, "save": ck.SaveEvery(micro_steps=1), "mid_cycle": "rewind"}
    Life(tmp_path / "run", Eager, **options).run(until=2)
    assert places(tmp_path / "run") == [(0, 0)]
    assert Life(tmp_path / "run", Eager, **options).run().steps == expected.steps


def test_eager_order_continues_with_more_epochs(tmp_path):
    never = ck.SaveEvery(micro_steps=99)
    expected = Life(tmp_path / "whole", Eager, epochs=2, save=never).run()
    Life(tmp_path / "run", Eager, epochs=1, save=never).run()
    resumed = Life(tmp_path / "run", Eager, epochs=2, save=never).run()
    assert resumed.steps == {step: expected.steps[step] for step in range(SIZE + 1, 2 * SIZE + 1)}


def test_a_loop_may_change_its_batches_in_place(tmp_path):
    def halve(x):
        x *= 0.5

    options = {"make": Unsized, "save": ck.SaveEvery(micro_steps=1)}
    expected = Life(tmp_path / "whole", change=halve, **options).run()
    Life(tmp_path / "run", change=halve, **options).run(until=2)
    resumed = Life(tmp_path / "run", change=halve, **options).run()
    assert resumed.steps == {step: expected.steps[step] for step in range(3, 19)}
