"""A loop that takes batches before it trains them would skip those that it holds: it is refused, or named."""

from __future__ import annotations

import queue
import threading

import mindspore as ms
import pytest
from mindspore import nn, ops
from mindspore.experimental import optim
from support.options import grouped
from support.training import accumulation_cell, begin_process, pipeline

import ckptkit as ck
from ckptkit.mindspore.train.counting import counting_of


def network():
    return accumulation_cell().network


class Functional:
    """A loop over network and optimizer, neither of which counts its calls."""

    def __init__(self, root, **options):
        begin_process()
        net = network()
        self.optimizer = nn.Adam(net.trainable_params(), 1e-2)
        self.gradients = ms.value_and_grad(net, None, list(self.optimizer.parameters))
        self.batches = ck.data.resumable(pipeline(), 1)
        self.state = ck.StateManager([net, self.optimizer], self.batches, **grouped(**options))
        self.manager = ck.CheckpointManager(root, save=ck.SaveEvery(micro_steps=1), saving=ck.Saving(when_busy="wait"))
        self.manager.restore(self.state)

    def train(self, batch):
        _, gradients = self.gradients(*batch)
        self.optimizer(gradients)


def by_thread(batches):
    ready = queue.Queue(2)

    def work():
        for batch in batches:
            ready.put(batch)

    threading.Thread(target=work, daemon=True).start()
    while True:
        yield ready.get()


def ahead(batches, depth):
    held = []
    for batch in batches:
        held.append(batch)
        if len(held) > depth:
            yield held.pop(0)


def test_a_thread_that_reads_ahead_is_refused(tmp_path):
    """Before the first save, so that no start goes on from a wrong place."""
    loop = Functional(tmp_path)
    loop.train(next(by_thread(loop.batches)))
    for save in (loop.manager.step, loop.manager.save_final, loop.manager.save):
        with pytest.raises(ck.ResumeError, match="a thread other than the training thread"):
            save(loop.state)
    assert loop.manager.checkpoints() == []


def test_a_loop_that_reads_ahead_is_named(tmp_path, shown):
    for depth in (1, 2):
        loop = Functional(tmp_path / str(depth))
        batch = next(ahead(loop.batches, depth))
        loop.state.progress()  # a look before the batch is trained
        loop.train(batch)
        words = f"may not be bit-exact. {depth + 1} batches of resumable() were taken before"
        assert words not in shown()
        loop.manager.step(loop.state)
        loop.manager.close()
        assert words in shown()


class EveryThird:
    """Says that three batches are a cycle."""

    accumulation_steps = 3
    micro_step = 0


def test_strict_refuses_a_cycle_read_ahead(tmp_path):
    cycle = EveryThird()
    loop = Functional(tmp_path, cycle=cycle, strict=True)
    left = iter(loop.batches)
    batch, *_ = [next(left) for _ in range(4)]  # not ahead(): strict refuses what it holds, before any batch
    loop.gradients(*batch)
    cycle.micro_step = 1
    with pytest.raises(ck.ResumeError, match="4 batches of resumable\\(\\) were taken before the first step"):
        loop.manager.step(loop.state)
    assert loop.manager.checkpoints() == []


def test_a_loop_may_step_or_train_now_and_then(tmp_path):
    """The optimizer has counted the batches; a loop that steps each batch is sound however rarely it moves."""
    for name, trained, steps in (
        ("each", {1, 2, 3, 4, 6}, range(1, 7)),
        ("each third", {1, 2, 3, 4, 6}, (3, 6)),
        ("never", set(), range(1, 7)),
        ("after overflows", {3, 4, 5}, range(1, 7)),
    ):
        loop = Functional(tmp_path / name, strict=True)
        for number, batch in enumerate(loop.batches, 1):
            if number in trained:
                loop.train(batch)
            if number in steps:
                loop.manager.step(loop.state)
            if number == 6:
                break
        loop.manager.close()
        assert loop.manager.latest().progress.batches_delivered == 6, name


def test_optimizer_that_moved_most_tells_of_reading():
    """A loop may train with one of two, as in the phases of a GAN."""
    for steps in ((3, 0), (0, 3), (1, 0), (0, 1), (2, 1)):
        optimizers = [nn.Adam(network().trainable_params()) for _ in steps]
        counting = counting_of(nn.Dense(2, 2), optimizers)
        counting.begin_loop()
        counting.deliver(3)
        for optimizer, step in zip(optimizers, steps, strict=True):
            ops.assign(optimizer.global_step, ms.Tensor([step], ms.int32))
        assert (counting.read_ahead() is None) == (max(steps) == 3), steps
    for kind, step in ((optim.Adam, "state_step"), (optim.Adamax, "step_t")):
        optimizer = kind(network().trainable_params())
        counting = counting_of(nn.Dense(2, 2), [optimizer])
        counting.begin_loop()
        counting.deliver(3)
        ops.assign(getattr(optimizer, step), ms.Tensor(1, ms.int32))
        assert counting.read_ahead() is not None, kind
