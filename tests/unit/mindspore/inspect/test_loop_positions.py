"""Where a loop begins, what it does after its save, and which objects it exchanges are named before the first batch."""

# ruff: noqa: B007 - loops as people write them

from __future__ import annotations

import queue
import threading
import types

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops
from support.training import accumulation_cell, begin_process

import ckptkit as ck
from ckptkit.errors import ResumeError

ROWS = [(ms.Tensor(np.ones((2, 6), np.float32)), ms.Tensor(np.zeros((2, 3), np.float32))) for _ in range(3)]


class Job:
    """What the loops here use."""

    def __init__(self, root, **named):
        begin_process(mode="pynative")
        self.cell = accumulation_cell(2).set_train()
        self.rate = self.cell.optimizer.learning_rate
        self.batches = ck.data.resumable(ROWS, epochs=2)
        self.kept = types.SimpleNamespace(best=1e9, bad=0)
        self.manager = ck.CheckpointManager(root)
        self.root, self.named = root, named

    def restore(self, *, batches=True, **named):
        given = [self.batches] if batches else []
        self.state = ck.StateManager(self.cell, *given, strict=True, **named)
        return self.manager.restore(self.state)


def check_refused(loop, root, message):
    job = Job(root)
    with pytest.raises(ResumeError, match=message):
        loop(job)
    assert job.cell.counters.micro_steps == 0
    job.manager.close()  # one that is left open would hear the signals of later tests


def check_accepted(loop, root):
    job = Job(root)
    loop(job)
    assert job.cell.counters.micro_steps > 0
    job.manager.close()


# Where the loop begins


def every_epoch_again(job):
    job.restore(batches=False)
    for epoch in range(2):
        for x, y in ROWS:
            job.cell(x, y)
            job.manager.step(job.state)


def begins_again_beside_a_thread(job):
    """The thread waits in a loop of its own, which has no position."""
    asked = queue.Queue()
    counter = Counting(asked)
    counter.start()
    try:
        every_epoch_again(job)
    finally:
        asked.put(None)
        counter.join()


class Counting(threading.Thread):
    def __init__(self, asked):
        super().__init__(daemon=True)
        self.asked = asked

    def run(self):
        while self.asked.get() is not None:
            pass


def every_step_again(job):
    job.restore(batches=False)
    for step in range(6):
        job.cell(*ROWS[step % 3])
        job.manager.step(job.state)


def begins_where_restored(job):
    point = job.restore(batches=False)
    for step in range(point.batches_delivered, 6):
        job.cell(*ROWS[step % 3])
        job.manager.step(job.state)


def passes_over_what_is_done(job):
    point = job.restore(batches=False)
    for step in range(6):
        if step < point.batches_delivered:
            continue
        job.cell(*ROWS[step % 3])
        job.manager.step(job.state)


class Loader:
    """Positions itself."""

    def __init__(self):
        self.at = 0

    def __iter__(self):
        while self.at < len(ROWS):
            self.at += 1
            yield ROWS[self.at - 1]

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def runs_over_a_named_loader(job):
    loader = Loader()
    job.restore(batches=False, loader=loader)
    for x, y in loader:
        job.cell(x, y)
        job.manager.step(job.state)


class Rows:
    """A loader that begins where its sampler says."""

    def __init__(self):
        self.sampler = types.SimpleNamespace(start=0)

    def __iter__(self):
        return iter(ROWS[self.sampler.start :])

    def seek(self, start):
        vars(self.sampler)["start"] = start


def takes_what_is_done(job):
    point = job.restore(batches=False)
    rows = iter(ROWS)
    for _ in range(point.batches_delivered):
        next(rows)
    for x, y in rows:
        job.cell(x, y)
        job.manager.step(job.state)


def sets_a_sampler(job):
    loader = Rows()
    point = job.restore(batches=False)
    loader.sampler.start = point.batches_delivered
    for x, y in loader:
        job.cell(x, y)
        job.manager.step(job.state)


def positions_by_a_method(job):
    loader = Rows()
    point = job.restore(batches=False)
    loader.seek(point.batches_delivered)
    for at, (x, y) in enumerate(loader, point.batches_delivered):
        job.cell(x, y)
        job.manager.step(job.state, {"at": at})


def passes_over_the_first_of_an_epoch(job):
    point = job.restore(batches=False)
    for epoch in range(point.epoch, 2):
        for at, (x, y) in enumerate(ROWS):
            if epoch == point.epoch and at < point.batch:
                continue
            job.cell(x, y)
            job.manager.step(job.state)


def positions_another_loader(job):
    loader, other = Rows(), Rows()
    point = job.restore(batches=False)
    other.seek(point.batches_delivered)
    for x, y in loader:
        job.cell(x, y)
        job.manager.step(job.state)


def positions_what_holds_the_rows(job):
    point = job.restore(batches=False)
    job.at = point.batches_delivered
    job.rows = ROWS
    for x, y in job.rows:
        job.cell(x, y)
        job.manager.step(job.state)


def takes_from_another_iterator(job):
    point = job.restore(batches=False)
    rows, others = iter(ROWS), iter(ROWS)
    for _ in range(point.batches_delivered):
        next(others)
    for x, y in rows:
        job.cell(x, y)
        job.manager.step(job.state)


def passes_over_batches_that_are_positioned(job):
    point = job.restore()
    for at, (x, y) in enumerate(job.batches):
        if at < point.batch:
            continue
        job.cell(x, y)
        job.manager.step(job.state)


def test_number_of_batches_that_ckptkit_positions_is_named(root):
    check_refused(passes_over_batches_that_are_positioned, root, r"carries enumerate\(\) from one batch to the next")


@pytest.mark.parametrize(
    "loop",
    [
        every_epoch_again,
        every_step_again,
        positions_another_loader,
        positions_what_holds_the_rows,
        takes_from_another_iterator,
        begins_again_beside_a_thread,
    ],
)
def test_loop_that_begins_again_is_named(loop, root):
    check_refused(loop, root, "the loop begins there again, whatever was restored")


@pytest.mark.parametrize(
    "loop",
    [
        begins_where_restored,
        passes_over_what_is_done,
        runs_over_a_named_loader,
        takes_what_is_done,
        sets_a_sampler,
        positions_by_a_method,
        passes_over_the_first_of_an_epoch,
    ],
)
def test_loop_that_goes_on_is_not_named(loop, root):
    check_accepted(loop, root)


# What comes after the save


def draws_after_the_save(job):
    job.restore()
    for x, y in job.batches:
        job.cell(x, y)
        job.manager.step(job.state)
        print(np.random.choice(3))


def draws_from_a_named_generator_after_the_save(job):
    rng = np.random.default_rng(1)
    job.restore(rng=rng)
    for x, y in job.batches:
        job.cell(x, y)
        job.manager.step(job.state)
        print(rng.normal())


def counts_after_the_save(job):
    job.restore(kept=ck.attributes(job.kept, "best", "bad"))
    for x, y in job.batches:
        job.cell(x, y)
        job.manager.step(job.state)
        job.kept.bad += 1


def assigns_after_the_save(job):
    job.restore()
    for x, y in job.batches:
        job.cell(x, y)
        job.manager.step(job.state)
        ops.assign(job.rate, job.rate * 0.5)


def evaluates_after_the_save(job):
    job.restore()
    for x, y in job.batches:
        job.cell(x, y)
        job.manager.step(job.state)
        print(float(job.cell.network(x, y)))


def draws_in_the_other_branch(job):
    job.restore()
    for x, y in job.batches:
        job.cell(x, y)
        if job.batches.epoch:
            job.manager.save(job.state).result()
        else:
            print(np.random.choice(3))


def draws_before_the_save(job):
    job.restore()
    for x, y in job.batches:
        job.cell(x * float(np.random.rand()), y)
        job.manager.step(job.state)


@pytest.mark.parametrize(
    "loop",
    [
        draws_after_the_save,
        draws_from_a_named_generator_after_the_save,
        counts_after_the_save,
        assigns_after_the_save,
    ],
)
def test_what_comes_after_the_save_is_named(loop, root):
    check_refused(loop, root, "after the save in the same iteration")


@pytest.mark.parametrize("loop", [evaluates_after_the_save, draws_in_the_other_branch, draws_before_the_save])
def test_what_changes_nothing_after_the_save_is_not_named(loop, root):
    check_accepted(loop, root)


# Objects of which checkpoints have a part


def counts_what_was_not_given(job):
    job.restore(kept=ck.attributes(job.kept, "best"))
    for x, y in job.batches:
        loss = float(job.cell(x, y))
        job.kept.bad = 0 if loss < job.kept.best else job.kept.bad + 1
        job.kept.best = min(loss, job.kept.best)
        if job.kept.bad == 4:
            ops.assign(job.rate, job.rate * 0.5)
        job.manager.step(job.state)


class Plateau:
    """Stores its best value, and forgets for how long it has been the best."""

    def __init__(self):
        self.best, self.bad = 1e9, 0

    def step(self, loss):
        self.bad = 0 if loss < self.best else self.bad + 1
        self.best = min(loss, self.best)
        return self.bad == 4

    def state_dict(self):
        return {"best": self.best}

    def load_state_dict(self, state):
        self.best = state["best"]


class WholePlateau(Plateau):
    """Stores both."""

    def state_dict(self):
        return {"best": self.best, "bad": self.bad}

    def load_state_dict(self, state):
        self.best, self.bad = state["best"], state["bad"]


class AnyPlateau(Plateau):
    """Stores all that it has."""

    def state_dict(self):
        return dict(vars(self))

    def load_state_dict(self, state):
        vars(self).update(state)


def steps(kind):
    def loop(job):
        plateau = kind()
        job.restore(plateau=plateau)
        for x, y in job.batches:
            if plateau.step(float(job.cell(x, y))):
                ops.assign(job.rate, job.rate * 0.5)
            job.manager.step(job.state)

    return loop


@pytest.mark.parametrize("loop", [counts_what_was_not_given, steps(Plateau)], ids=["attributes", "state_dict"])
def test_what_a_named_object_does_not_store_is_named(loop, root):
    check_refused(loop, root, "carries bad from one batch to the next")


@pytest.mark.parametrize("kind", [WholePlateau, AnyPlateau])
def test_object_that_stores_all_is_not_named(kind, root):
    check_accepted(steps(kind), root)


# Objects that are exchanged


def loss_is_exchanged(job):
    network, loss_fn = nn.Dense(6, 3), nn.MSELoss()
    optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)

    def forward(x, y):
        return loss_fn(network(x), y)

    gradients = ms.value_and_grad(forward, None, network.trainable_params())
    state = ck.StateManager([network, optimizer], job.batches, strict=True)
    point = job.manager.restore(state)
    for step, (x, y) in enumerate(job.batches, point.batches_delivered):
        if step == 3:
            loss_fn = nn.L1Loss()
        _, grads = gradients(x, y)
        optimizer(grads)
        job.manager.step(state)


def optimizer_is_exchanged(job):
    network = nn.Dense(6, 3)

    def built(parameters):
        return nn.Momentum(parameters, 0.1, 0.9), ms.value_and_grad(lambda x, y: network(x).sum(), None, parameters)

    optimizer, gradients = built([network.weight])
    state = ck.StateManager([network, optimizer], job.batches, strict=True)
    point = job.manager.restore(state)
    for step, (x, y) in enumerate(job.batches, point.batches_delivered):
        if step == 3:
            optimizer, gradients = built(network.trainable_params())
        _, grads = gradients(x, y)
        optimizer(grads)
        job.manager.step(state)


def layer_is_exchanged(job):
    layers = nn.SequentialCell(nn.Dense(6, 3), nn.Sigmoid())
    loss = nn.WithLossCell(layers, nn.MSELoss())
    cell = ck.AccumulationTrainCell(loss, nn.Momentum(layers.trainable_params(), 0.1, 0.9), 2).set_train()
    state = ck.StateManager(cell, job.batches, strict=True)
    point = job.manager.restore(state)
    for step, (x, y) in enumerate(job.batches, point.batches_delivered):
        if step == 3:
            layers[1] = nn.ReLU()
        cell(x, y)
        job.manager.step(state)


@pytest.mark.parametrize(
    ("loop", "what"),
    [
        (loss_is_exchanged, "carries loss_fn from"),
        (optimizer_is_exchanged, "carries (optimizer|gradients) from"),
        (layer_is_exchanged, "carries its layers, hooks or types from"),
    ],
)
def test_exchanged_object_is_named(loop, what, root):
    check_refused(loop, root, what)


# Code that calls run beside


def hook_keeps_a_mean(job):
    kept = {}

    def hook(cell, inputs, output):
        kept["mean"] = 0.9 * kept.get("mean", 0.0) + 0.1 * float(output.asnumpy().mean())

    head = nn.Dense(6, 6)
    head.register_forward_hook(hook)
    job.restore(head=head)
    for x, y in job.batches:
        job.cell(head(x) + kept["mean"], y)
        job.manager.step(job.state)


class Environment:
    def __init__(self):
        self.at = 0.0

    def advance(self):
        self.at = np.sin(self.at + 1)
        return self.at


class Wrapper:
    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)


def method_of_a_wrapped_object(job):
    environment = Wrapper(Environment())
    job.restore()
    for x, y in job.batches:
        job.cell(x * float(environment.advance()), y)
        job.manager.step(job.state)


def list_filled_by_map(job):
    seen = []
    job.restore()
    for x, y in job.batches:
        list(map(seen.append, [float(x.sum())]))
        job.cell(x * sum(seen), y)
        job.manager.step(job.state)


def value_that_follows_the_epoch(job):
    scale = 1.0
    point = job.restore()
    last = point.epoch
    for x, y in job.batches:
        if job.batches.epoch != last:
            last = job.batches.epoch
            scale = 1.0 / (1 + last)
        job.cell(x * scale, y)
        job.manager.step(job.state)


@pytest.mark.parametrize(
    ("loop", "what"),
    [
        (hook_keeps_a_mean, "carries .*kept"),
        (method_of_a_wrapped_object, "carries at from"),
        (list_filled_by_map, "carries seen from"),
        (value_that_follows_the_epoch, "carries scale from"),
    ],
)
def test_state_behind_a_call_is_named(loop, what, root):
    check_refused(loop, root, what)


def value_that_follows_the_epoch_from_its_beginning(job):
    point = job.restore()
    last, scale = point.epoch, 1.0 / (1 + point.epoch)
    for x, y in job.batches:
        if job.batches.epoch != last:
            last = job.batches.epoch
            scale = 1.0 / (1 + last)
        job.cell(x * scale, y)
        job.manager.step(job.state)


def test_value_that_is_made_at_the_restore_too_is_not_named(root):
    check_accepted(value_that_follows_the_epoch_from_its_beginning, root)
