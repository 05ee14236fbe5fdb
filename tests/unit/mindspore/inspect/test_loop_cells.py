"""State in attributes of cells that a loop reaches by MindSpore's own means is named before the first batch."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn
from mindspore.experimental import optim
from support.training import begin_process

import ckptkit as ck
from ckptkit.errors import ResumeError

ROWS = [(ms.Tensor(np.ones((2, 6), np.float32)), ms.Tensor(np.zeros((2, 6), np.float32))) for _ in range(3)]


class Drop(nn.Cell):
    """As stochastic depth, whose rate rises."""

    def __init__(self):
        super().__init__()
        self.rate = 0.0

    def construct(self, x):
        return x * (1 - self.rate)


class Job:
    """A network without a train cell."""

    def __init__(self, root):
        begin_process(mode="pynative")
        self.network = nn.SequentialCell(nn.Dense(6, 6), Drop(), nn.BatchNorm1d(6)).set_train()
        self.optimizer = optim.Adam(self.network.trainable_params(), lr=0.01)
        self.scheduler = optim.lr_scheduler.StepLR(self.optimizer, 2)
        loss = nn.MSELoss()
        self.gradients = ms.value_and_grad(lambda x, y: loss(self.network(x), y), None, self.optimizer.parameters)
        self.batches = ck.data.resumable(ROWS, epochs=2)
        self.manager = ck.CheckpointManager(root)

    def restore(self, **named):
        self.state = ck.StateManager([self.network, self.optimizer], self.batches, strict=True, **named)
        return self.manager.restore(self.state)

    def train(self, x, y):
        self.optimizer(self.gradients(x, y)[1])


def ramp(cell):
    if isinstance(cell, Drop):
        cell.rate = min(0.5, cell.rate + 0.1)


def among_all_cells(job):
    job.restore()
    for x, y in job.batches:
        job.train(x, y)
        for _, one in job.network.cells_and_names():
            if isinstance(one, Drop):
                one.rate += 0.1
        job.manager.step(job.state)


def among_its_cells(job):
    job.restore()
    for x, y in job.batches:
        job.train(x, y)
        for one in job.network.cells():
            ramp(one)
        job.manager.step(job.state)


def by_index(job):
    job.restore()
    for x, y in job.batches:
        job.train(x, y)
        job.network[1].rate += 0.1
        job.manager.step(job.state)


def over_the_list(job):
    job.restore()
    for x, y in job.batches:
        job.train(x, y)
        for one in job.network:
            ramp(one)
        job.manager.step(job.state)


def by_apply(job):
    job.restore()
    for x, y in job.batches:
        job.train(x, y)
        job.network.apply(ramp)
        job.manager.step(job.state)


def on_a_cell_of_the_library(job):
    job.network.steps = 0
    job.restore()
    for x, y in job.batches:
        if job.network.steps > 3:
            x = x * 0.5  # noqa: PLW2901
        job.train(x, y)
        job.network.steps += 1
        job.manager.step(job.state)


def of_a_layer_of_the_library(job):
    job.restore()
    for x, y in job.batches:
        job.train(x, y)
        if not job.network[2].use_batch_statistics:
            job.network[2].momentum *= 0.5
        job.network[2].use_batch_statistics = not job.network[2].use_batch_statistics
        job.manager.step(job.state)


def steps_after_the_save(job):
    job.restore(scheduler=job.scheduler)
    for x, y in job.batches:
        job.train(x, y)
        job.manager.step(job.state)
        job.scheduler.step()


def switches(job, *, at, before=False):
    """Two teachers, both in the checkpoint; which of them is used is not."""
    small, big = nn.Dense(6, 6), nn.Dense(6, 6)
    teacher = small
    point = job.restore(small=small, big=big)
    if not before:
        teacher = small
    for i, (x, y) in enumerate(job.batches, point.batches_delivered):
        if i == at:
            teacher = big
        job.train(x, y + teacher(x))
        job.manager.step(job.state)


def bound_after_the_restore(job):
    switches(job, at=4)


def bound_before_the_restore(job):
    switches(job, at=4, before=True)


@pytest.mark.parametrize(
    ("loop", "message"),
    [
        (bound_after_the_restore, "carries teacher from one batch to the next.* in an object of your own"),
        (bound_before_the_restore, "carries teacher from one batch to the next.* in an object of your own"),
        (among_all_cells, "carries rate from one batch to the next"),
        (among_its_cells, "carries rate from one batch to the next"),
        (by_index, "carries rate from one batch to the next"),
        (over_the_list, "carries rate from one batch to the next"),
        (by_apply, "carries rate from one batch to the next"),
        (on_a_cell_of_the_library, "carries steps from one batch to the next"),
        (of_a_layer_of_the_library, "carries .*use_batch_statistics.* from one batch to the next"),
        (steps_after_the_save, "after the save in the same iteration"),
    ],
)
def test_state_in_cells_is_named(root, loop, message):
    job = Job(root)
    with pytest.raises(ResumeError, match=message):
        loop(job)
    assert int(job.optimizer.state_step.asnumpy()) == 0
    job.manager.close()


def looks_at_cells(job):
    job.restore(scheduler=job.scheduler)
    for x, y in job.batches:
        job.train(x, y)
        job.scheduler.step()
        rates = [one.rate for _, one in job.network.cells_and_names() if isinstance(one, Drop)]
        job.manager.step(job.state, {"rate": rates[0], "channels": job.network[2].num_features})


def chosen_for_each_batch(job):
    small, big = nn.Dense(6, 6), nn.Dense(6, 6)
    point = job.restore(small=small, big=big, scheduler=job.scheduler)
    first = small if point.batches_delivered < 4 else big
    for i, (x, y) in enumerate(job.batches, point.batches_delivered):
        teacher = small if i < 4 else big
        if i == 4:
            first = big
        job.train(x, y + teacher(x) + first(x))
        job.manager.step(job.state)


@pytest.mark.parametrize("loop", [looks_at_cells, chosen_for_each_batch])
def test_cells_that_are_read_or_chosen_by_the_position_are_not_named(root, loop):
    job = Job(root)
    loop(job)
    assert int(job.optimizer.state_step.asnumpy()) == 6
    job.manager.close()
