"""Loops of one's own that keep something in their variables."""

from __future__ import annotations

import contextvars
import functools
import heapq
import itertools
import random
import types
from collections import deque
from dataclasses import dataclass

import mindspore as ms
import numpy as np
from mindspore import ops

import ckptkit as ck
from exactness.jobs.job import job
from exactness.jobs.outcome import Exact, Told
from exactness.jobs.parts import BATCH, EPOCHS, FEATURES, Loss, accumulating, adam, rows, slices


def looped(run, step, cell=None, **stateful):
    """The guide's loop around ``step``, which is also told the number of the batch."""
    cell = cell if cell is not None else accumulating()
    batches = ck.data.resumable(slices(), EPOCHS)
    with run.manager() as manager:
        state = ck.StateManager(cell, batches, **stateful)
        point = manager.restore(state)
        run.begin(point)
        for at, batch in enumerate(batches, point.batches_delivered):
            outputs = step(cell, at, *batch)
            run.step(batch, outputs, cell=cell)
            manager.step(state)


def rate_of(cell):
    return cell.optimizer.learning_rate


@job(Told("left"), "graph")
def warm_restarts_of_growing_length(run):
    cell = accumulating()
    batches = ck.data.resumable(slices(), EPOCHS)
    length = left = 2
    with run.manager() as manager:
        state = ck.StateManager(cell, batches)
        run.begin(manager.restore(state))
        for x, y in batches:
            rate_of(cell).set_data(ms.Tensor(0.02 * left / length, ms.float32))
            run.step((x, y), cell(x, y), cell=cell)
            left -= 1
            if left == 0:
                length += 1
                left = length
            manager.step(state)


@job(Told("masks"), "graph")
def pruned_by_masks_made_once(run):
    masks = None

    def step(cell, at, x, y):
        nonlocal masks
        loss = cell(x, y)
        if at == 6:
            masks = [np.abs(w.asnumpy()) > 0.1 for w in cell.network.trainable_params()]
        if masks is not None:
            for weight, mask in zip(cell.network.trainable_params(), masks, strict=True):
                weight.set_data(ms.Tensor(weight.asnumpy() * mask, ms.float32))
        return loss

    looped(run, step)


class RangeObserver:
    """The range of what it was shown, and a scale by it."""

    def __init__(self):
        self.low, self.high = 0.0, 0.0

    def __call__(self, x):
        self.low, self.high = min(self.low, float(x.min())), max(self.high, float(x.max()))
        return x

    @property
    def scale(self):
        return (self.high - self.low) / 15 or 1.0


@job(Told("observer"), "graph")
def inputs_rounded_by_an_observer(run):
    observer = RangeObserver()

    def step(cell, at, x, y):
        observer(x)
        return cell(ops.round(x / observer.scale) * observer.scale, y)

    looped(run, step)


@job(Exact(), "graph")
def observer_with_named_attributes(run):
    observer = RangeObserver()

    def step(cell, at, x, y):
        observer(x)
        return cell(ops.round(x / observer.scale) * observer.scale, y)

    looped(run, step, observer=ck.attributes(observer, "low", "high"))


@job(Told("slow"), "graph")
def lookahead_with_slow_weights_in_a_list(run):
    cell = accumulating()
    slow = [w.asnumpy().copy() for w in cell.network.trainable_params()]

    def step(cell, at, x, y):
        loss = cell(x, y)
        if at % 4 == 3:
            for number, weight in enumerate(cell.network.trainable_params()):
                slow[number] = slow[number] + 0.5 * (weight.asnumpy() - slow[number])
                weight.set_data(ms.Tensor(slow[number]))
        return loss

    looped(run, step, cell)


@job(Told("history"), "pynative")
def losses_weighed_by_their_ratio(run):
    """Dynamic weight average: by the last two losses of each task."""
    loss = Loss().set_train()
    optimizer = adam(loss)

    def forward(x, y, weights):
        out = loss.network(x)
        losses = ops.stack((ops.cross_entropy(out, y), (out**2).mean()))
        return (losses * weights).sum(), losses

    gradients = ms.value_and_grad(forward, None, optimizer.parameters, has_aux=True)
    history = []
    batches = ck.data.resumable(slices(), EPOCHS)
    with run.manager() as manager:
        state = ck.StateManager([loss, optimizer], batches)
        run.begin(manager.restore(state))
        for x, y in batches:
            weights = history[-1] / history[-2] if len(history) > 1 else np.ones(2)
            (value, losses), grads = gradients(x, y, ms.Tensor(weights, ms.float32))
            history.append(losses.asnumpy())
            optimizer(grads)
            run.step((x, y), value, cells=[loss, optimizer])
            manager.step(state)


@job(Told("queue"), "pynative")
def queue_of_keys_in_an_array(run):
    loss = Loss().set_train()
    optimizer = adam(loss)
    queue, place = np.ones((12, 3), np.float32), 0

    def forward(x, y, others):
        out = loss.network(x)
        return ops.cross_entropy(out, y) + 0.1 * ops.matmul(out, others.T).mean(), out

    gradients = ms.value_and_grad(forward, None, optimizer.parameters, has_aux=True)
    batches = ck.data.resumable(slices(), EPOCHS)
    with run.manager() as manager:
        state = ck.StateManager([loss, optimizer], batches)
        run.begin(manager.restore(state))
        for x, y in batches:
            (value, out), grads = gradients(x, y, ms.Tensor(queue))
            queue[place : place + BATCH] = out.asnumpy()
            place = (place + BATCH) % len(queue)
            optimizer(grads)
            run.step((x, y), value, cells=[loss, optimizer])
            manager.step(state)


@job(Told("replay"), "graph")
def replay_of_earlier_batches(run):
    replay = []

    def step(cell, at, x, y):
        replay.append((x, y))
        old, _ = random.choice(replay)
        return cell(x + 0.1 * old, y)

    looped(run, step)


@job(Told("heap"), "graph")
def hardest_batches_in_a_heap(run):
    heap = []

    def step(cell, at, x, y):
        loss = cell(x, y)
        heapq.heappush(heap, (-float(loss), at, x))
        if at % 4 == 3:
            cell.network.network.hidden(heap[0][2])
            rate_of(cell).set_data(ms.Tensor(0.01 * len(heap), ms.float32))
        return loss

    looped(run, step)


class Mixup:
    def __init__(self, rng):
        self.rng = rng

    def __call__(self, x):
        share = self.rng.uniform(0, 1)
        return share * x + (1 - share) * ops.flip(x, (0,))


@job(Told("rng"), "graph")
def mixup_with_its_own_random_state(run):
    mixup = Mixup(np.random.RandomState(2))
    looped(run, lambda cell, at, x, y: cell(mixup(x), y))


@job(Exact(), "graph")
def mixup_with_a_random_state_by_name(run):
    rng = np.random.RandomState(2)
    mixup = Mixup(rng)
    looped(run, lambda cell, at, x, y: cell(mixup(x), y), rng=rng)


@job(Exact(), "graph")
def mixup_with_pythons_generator_by_name(run):
    rng = random.Random(2)
    mixup = Mixup(rng)
    looped(run, lambda cell, at, x, y: cell(mixup(x), y), rng=rng)


@job(Exact(), "graph")
def mixup_with_numpys_generator_by_name(run):
    rng = np.random.default_rng(2)
    mixup = Mixup(rng)
    looped(run, lambda cell, at, x, y: cell(mixup(x), y), rng=rng)


@job(Told("epoch"), "graph", kill=13)
def seeded_anew_by_each_epoch(run):
    """The first batch of a start looks like the first one of an epoch."""
    cell = accumulating()
    batches = ck.data.resumable(rows(), EPOCHS)
    epoch = None
    with run.manager() as manager:
        state = ck.StateManager(cell, batches)
        run.begin(manager.restore(state))
        for x, y in batches:
            if batches.epoch != epoch:
                epoch = batches.epoch
                np.random.seed(epoch)
            noise = np.random.standard_normal(x.shape)
            run.step((x, y), cell(x + ms.Tensor(noise, ms.float32), y), cell=cell)
            manager.step(state)


class Stopper:
    def __init__(self, patience):
        self.patience, self.best, self.bad = patience, float("inf"), 0

    def __call__(self, loss):
        if loss < self.best:
            self.best, self.bad = loss, 0
            return False
        self.bad += 1
        return self.bad >= self.patience


@job(Told("stopper"), "graph", kill=5)
def stopped_by_an_object_that_is_called(run):
    cell, stopper = accumulating(), Stopper(4)
    batches = ck.data.resumable(slices(), EPOCHS)
    with run.manager() as manager:
        state = ck.StateManager(cell, batches)
        run.begin(manager.restore(state))
        for x, y in batches:
            loss = cell(x, y)
            run.step((x, y), loss, cell=cell)
            manager.step(state)
            if stopper(float(loss)):
                break


@job(Exact(), "graph", kill=5)
def stopped_by_an_object_given_by_its_attributes(run):
    cell, stopper = accumulating(), Stopper(4)
    batches = ck.data.resumable(slices(), EPOCHS)
    with run.manager() as manager:
        state = ck.StateManager(cell, batches, stopper=ck.attributes(stopper, "best", "bad"))
        run.begin(manager.restore(state))
        for x, y in batches:
            loss = cell(x, y)
            stops = stopper(float(loss))
            run.step((x, y), loss, cell=cell, bad=stopper.bad)
            manager.step(state)
            if stops:
                break


@job(Told("rates"), "graph")
def rates_out_of_a_cycle(run):
    rates = itertools.cycle([0.01, 0.02, 0.005])

    def step(cell, at, x, y):
        rate_of(cell).set_data(ms.Tensor(next(rates), ms.float32))
        return cell(x, y)

    looped(run, step)


def rate_by_losses():
    rate = 0.01
    while True:
        loss = yield rate
        rate *= 0.9 if loss > 1 else 1.05


@job(Told("driver"), "graph")
def rate_by_a_coroutine(run):
    driver = rate_by_losses()
    next(driver)

    def step(cell, at, x, y):
        loss = cell(x, y)
        rate_of(cell).set_data(ms.Tensor(driver.send(float(loss)), ms.float32))
        return loss

    looped(run, step)


@job(Told("enumerate"), "graph")
def every_third_batch_by_enumerate(run):
    cell = accumulating()
    batches = ck.data.resumable(slices(), EPOCHS)
    with run.manager() as manager:
        state = ck.StateManager(cell, batches)
        run.begin(manager.restore(state))
        for number, (x, y) in enumerate(batches):
            scale = 2.0 if number % 5 == 0 else 1.0
            run.step((x, y), cell(scale * x, y), cell=cell)
            manager.step(state)


@dataclass
class Progress:
    smooth: float = 0.0
    seen: int = 0


@job(Told("progress"), "graph")
def smooth_loss_in_a_dataclass(run):
    progress = Progress()

    def step(cell, at, x, y):
        loss = cell(x, y)
        progress.seen += 1
        progress.smooth = 0.9 * progress.smooth + 0.1 * float(loss)
        if progress.smooth > 0.3:
            rate_of(cell).set_data(ms.Tensor(0.001 * progress.seen, ms.float32))
        return loss

    looped(run, step)


@job(Told("kept"), "graph")
def numbers_in_a_dictionary(run):
    kept = {"bad": 0, "best": 1e9}

    def step(cell, at, x, y):
        loss = float(cell(x, y))
        kept["bad"] = 0 if loss < kept["best"] else kept["bad"] + 1
        kept["best"] = min(loss, kept["best"])
        rate_of(cell).set_data(ms.Tensor(0.01 / (1 + kept["bad"]), ms.float32))
        return loss

    looped(run, step)


@job(Exact(), "graph")
def numbers_in_a_namespace_by_name(run):
    kept = types.SimpleNamespace(bad=0, best=1e9)

    def step(cell, at, x, y):
        loss = float(cell(x, y))
        kept.bad = 0 if loss < kept.best else kept.bad + 1
        kept.best = min(loss, kept.best)
        rate_of(cell).set_data(ms.Tensor(0.01 / (1 + kept.bad), ms.float32))
        return loss

    looped(run, step, kept=ck.attributes(kept, "bad", "best"))


def smoothed(average, loss):
    return loss if average is None else 0.9 * average + 0.1 * loss


@job(Told("average"), "graph")
def average_through_a_helper(run):
    cell, average = accumulating(), None
    batches = ck.data.resumable(slices(), EPOCHS)
    with run.manager() as manager:
        state = ck.StateManager(cell, batches)
        run.begin(manager.restore(state))
        for x, y in batches:
            loss = cell(x, y)
            average = smoothed(average, float(loss))
            rate_of(cell).set_data(ms.Tensor(0.01 * average, ms.float32))
            run.step((x, y), loss, cell=cell)
            manager.step(state)


CALLS = 0


@job(Told("CALLS"), "graph")
def counter_by_a_global_statement(run):
    def step(cell, at, x, y):
        global CALLS  # noqa: PLW0603 - what is tried here
        CALLS += 1
        return cell(x * CALLS, y)

    looped(run, step)


@job(Told("calls"), "graph")
def counter_of_a_function(run):
    def step(cell, at, x, y):
        step.calls += 1
        return cell(x * step.calls, y)

    step.calls = 0
    looped(run, step)


class Annealing:
    steps = 0

    @classmethod
    def factor(cls):
        cls.steps += 1
        return 1 / cls.steps


@job(Told("steps"), "graph")
def counter_of_a_class(run):
    Annealing.steps = 0
    looped(run, lambda cell, at, x, y: cell(x * Annealing.factor(), y))


@job(Told("seen"), "graph")
def list_in_a_default_argument(run):
    def step(cell, at, x, y, seen=[]):  # noqa: B006 - what is tried here
        seen.append(float(x.mean()))
        return cell(x - float(np.mean(seen)), y)

    looped(run, step)


@job(Told("window"), "graph")
def window_of_the_last_losses(run):
    cell, window = accumulating(), deque([1.0], maxlen=6)
    batches = ck.data.resumable(slices(), EPOCHS)
    with run.manager() as manager:
        state = ck.StateManager(cell, batches)
        run.begin(manager.restore(state))
        for x, y in batches:
            loss = cell(x, y)
            window.append(float(loss))
            if window[-1] > sum(window) / len(window):
                rate_of(cell).set_data(rate_of(cell) * 0.8)
            run.step((x, y), loss, cell=cell)
            manager.step(state)


@job(Told("mean"), "graph")
def mean_of_the_inputs_in_place(run):
    mean = np.zeros(FEATURES, np.float32)

    def step(cell, at, x, y):
        nonlocal mean
        mean *= 0.9
        mean += 0.1 * x.asnumpy().mean(0)
        return cell(x - ms.Tensor(mean), y)

    looped(run, step)


class Meter:
    def __init__(self):
        self.total, self.count, self.average = 0.0, 0, 0.0

    def update(self, value, count=1):
        self.total += value * count
        self.count += count
        self.average = self.total / self.count


@job(Exact(), "graph")
def meters_that_are_only_shown(run):
    cell, meter, best, lines = accumulating(), Meter(), float("inf"), []
    batches = ck.data.resumable(slices(), EPOCHS)
    with run.manager() as manager:
        state = ck.StateManager(cell, batches)
        run.begin(manager.restore(state))
        for number, (x, y) in enumerate(batches):
            loss = cell(x, y)
            meter.update(float(loss), x.shape[0])
            best = min(best, float(loss))
            lines.append(f"{number}: {meter.average:.3f}, {best:.3f}")
            if number % 4 == 0:
                print("\n".join(lines[-4:]))
            run.step((x, y), loss, cell=cell)
            manager.step(state)


@job(Told("best"), "graph", kill=7)
def best_weights_kept_in_a_file(run):
    """A resumed loop would write worse ones over the best."""
    cell, best, path = accumulating(), float("inf"), run.folder / "best.ckpt"
    batches = ck.data.resumable(slices(), EPOCHS)
    with run.manager() as manager:
        state = ck.StateManager(cell, batches)
        run.begin(manager.restore(state))
        for x, y in batches:
            loss = cell(x, y)
            if float(loss) < best:
                best = float(loss)
                ms.save_checkpoint(cell.network, str(path))
            run.step((x, y), loss, cell=cell, best=best)
            manager.step(state)


@job(Told("draw"), "graph")
def drawn_by_a_method_in_a_variable(run):
    draw = np.random.default_rng(2).random
    looped(run, lambda cell, at, x, y: cell(x * float(draw()), y))


@job(Told("noise"), "graph")
def drawn_by_a_partial(run):
    noise = functools.partial(np.random.default_rng(2).normal, 0, 0.1)
    looped(run, lambda cell, at, x, y: cell(x + float(noise()), y))


class WarmUp:
    def __init__(self):
        self.steps = 0

    def __call__(self, cell):
        self.steps += 1
        rate_of(cell).set_data(ms.Tensor(0.001 * self.steps, ms.float32))


@job(Told("warmup=ckptkit.attributes"), "graph")
def hooks_of_a_registry(run):
    hooks = {"warm": WarmUp()}

    def step(cell, at, x, y):
        for hook in hooks.values():
            hook(cell)
        return cell(x, y)

    looped(run, step)


@job(Told("itertools.count(1)"), "graph")
def batches_zipped_with_a_count(run):
    cell = accumulating()
    batches = ck.data.resumable(slices(), EPOCHS)
    with run.manager() as manager:
        state = ck.StateManager(cell, batches)
        run.begin(manager.restore(state))
        for number, (x, y) in zip(itertools.count(1), batches, strict=False):
            run.step((x, y), cell(x / number, y), cell=cell)
            manager.step(state)


@job(Exact(), "graph")
def batches_zipped_with_a_count_that_goes_on(run):
    cell = accumulating()
    batches = ck.data.resumable(slices(), EPOCHS)
    with run.manager() as manager:
        state = ck.StateManager(cell, batches)
        point = manager.restore(state)
        run.begin(point)
        for number, (x, y) in zip(itertools.count(point.batches_delivered + 1), batches, strict=False):
            for place, weight in zip(range(4), cell.network.trainable_params(), strict=True):
                weight.set_data(weight * (1 - 0.001 * place))
            run.step((x, y), cell(x / number, y), cell=cell)
            manager.step(state)


CONTEXT = contextvars.ContextVar("CONTEXT", default=1)


@job(Told("CONTEXT"), "graph")
def factor_in_a_context_variable(run):
    def step(cell, at, x, y):
        CONTEXT.set(CONTEXT.get() + 1)
        return cell(x / CONTEXT.get(), y)

    looped(run, step)
