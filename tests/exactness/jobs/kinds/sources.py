"""Loaders of one's own: anything that a loop can go through."""

from __future__ import annotations

import collections
import itertools
import os
import queue
import random
import threading

import mindspore as ms
import numpy as np

import ckptkit as ck
from exactness.jobs.job import job
from exactness.jobs.outcome import Exact, Refused, Told
from exactness.jobs.parts import BATCH, EPOCHS, SAMPLES, accumulating, arrays, rows, slices


def pick(indices):
    x, y = arrays()
    chosen = np.asarray(indices)
    return ms.Tensor(x[chosen]), ms.Tensor(y[chosen])


def train(run, loader, epochs=EPOCHS, **stateful):
    run.loop(accumulating(), ck.data.resumable(loader, epochs), **stateful)


class Endless:
    """A stream without an end, which the loop leaves."""

    def __init__(self):
        self.rng = np.random.default_rng(2)

    def __iter__(self):
        while True:
            yield pick(self.rng.integers(0, SAMPLES, BATCH))


@job(Exact(), "graph")
def endless_stream_that_the_loop_leaves(run):
    cell = accumulating()
    batches = ck.data.resumable(Endless(), 1)
    with run.manager() as manager:
        state = ck.StateManager(cell, batches)
        begin = manager.restore(state)
        run.begin(begin)
        for at, batch in enumerate(batches, begin.batches_delivered + 1):
            run.step(batch, cell(*batch), cell=cell)
            manager.step(state)
            if at == 16:
                break
        manager.save_final(state)


class ShuffleBuffer:
    """Draws from a buffer that it fills up by hand."""

    def __init__(self, seed=1):
        self.random = random.Random(seed)

    def __iter__(self):
        buffer, order = [], iter(range(SAMPLES))
        batch = []
        for index in itertools.chain(order, [None] * 10):
            if index is not None:
                buffer.append(index)
            if buffer and (index is None or len(buffer) == 10):
                batch.append(buffer.pop(self.random.randrange(len(buffer))))
            if len(batch) == BATCH:
                yield pick(batch)
                batch = []


@job(Exact(), "graph")
def shuffle_buffer_by_hand(run):
    train(run, ShuffleBuffer())


class Interleaved:
    """Two sets, of which a draw says whose turn it is."""

    def __init__(self, rng):
        self.rng = rng

    def __iter__(self):
        sets = [itertools.cycle(range(0, 24)), itertools.cycle(range(24, SAMPLES))]
        for _ in range(8):
            one = sets[int(self.rng.random() < 0.3)]
            yield pick([next(one) for _ in range(BATCH)])


@job(Exact(), "graph")
def two_sets_interleaved_by_a_draw(run):
    train(run, Interleaved(np.random.default_rng(8)))


class InterleavedGlobally(Interleaved):
    def __init__(self):
        pass

    def __iter__(self):
        sets = [itertools.cycle(range(0, 24)), itertools.cycle(range(24, SAMPLES))]
        for _ in range(8):
            one = sets[int(np.random.random() < 0.3)]
            yield pick([next(one) for _ in range(BATCH)])


@job(Told("global"), "graph")
def two_sets_interleaved_by_the_global_generator(run):
    train(run, InterleavedGlobally())


class Hashed:
    """Goes through a set of strings: the order is another one in each process."""

    def __init__(self, salt):
        self.salt = salt

    def __iter__(self):
        order = [int(name.rpartition("-")[2]) for name in {f"{self.salt}-{index}" for index in range(SAMPLES)}]
        for first in range(0, SAMPLES, BATCH):
            yield pick(order[first : first + BATCH])


@job(Refused(("did not give the same", "sample_rng"), "resume"), "graph")
def order_of_a_set_of_strings(run):
    train(run, Hashed(os.urandom(4).hex()))  # forked processes have the hashes of their server


class Clocked:
    """Seeds itself by its process, as workers do."""

    def __init__(self):
        self.rng = np.random.default_rng(os.getpid())

    def __iter__(self):
        for indices in self.rng.permutation(SAMPLES).reshape(-1, BATCH):
            yield pick(indices)


@job(Refused(("did not give the same", "sample_rng"), "resume"), "pynative")
def loader_seeded_by_its_process(run):
    train(run, Clocked())


class Prefetching:
    """A thread reads ahead of the loop."""

    def __init__(self, loader, depth=4):
        self.loader, self.depth = loader, depth

    def __iter__(self):
        ready = queue.Queue(self.depth)
        stop = object()

        def read():
            for batch in self.loader:
                ready.put(batch)
            ready.put(stop)

        threading.Thread(target=read, daemon=True).start()
        while (batch := ready.get()) is not stop:
            yield batch


class Stateful:
    """A loader that says where it is."""

    def __init__(self):
        self.epoch, self.done = 0, 0

    def state_dict(self):
        return {"epoch": self.epoch, "done": self.done}

    def load_state_dict(self, state):
        self.epoch, self.done = state["epoch"], state["done"]

    def __iter__(self):
        order = np.random.default_rng(self.epoch).permutation(SAMPLES).reshape(-1, BATCH)
        for indices in order[self.done :]:
            self.done += 1
            yield pick(indices)
        self.epoch, self.done = self.epoch + 1, 0


@job(Exact(), "graph")
def thread_that_reads_ahead_of_a_plain_loader(run):
    train(run, Prefetching(ShuffleBuffer()))


class PrefetchingState(Prefetching):
    def state_dict(self):
        return self.loader.state_dict()

    def load_state_dict(self, state):
        self.loader.load_state_dict(state)


@job(
    Told("ahead"),
    "graph",
    differs="a state that is ahead of its batches is named when its first epoch ends or at the resume, not before",
)
def thread_that_reads_ahead_and_passes_the_state_on(run):
    train(run, PrefetchingState(Stateful()))


@job(Told("batches"), "graph")
def prefetching_of_what_is_resumable(run):
    """The wrong way round: the loop reads ahead of training."""
    cell = accumulating()
    batches = ck.data.resumable(Stateful(), EPOCHS)
    with run.manager() as manager:
        state = ck.StateManager(cell, batches)
        run.begin(manager.restore(state))
        ahead = collections.deque()
        for batch in batches:
            ahead.append(batch)
            if len(ahead) < 3:
                continue
            ready = ahead.popleft()
            run.step(ready, cell(*ready), cell=cell)
            manager.step(state)


class Mined:
    """Takes the samples with the highest losses more often; the loop tells the losses."""

    def __init__(self):
        self.losses = np.ones(SAMPLES)

    def __iter__(self):
        for _ in range(8):
            self.chosen = np.argsort(-self.losses, kind="stable")[:BATCH]
            yield pick(self.chosen)

    def told(self, loss):
        self.losses[self.chosen] = 0.5 * self.losses[self.chosen] + 0.1 * loss


class StoredMined(Mined):
    def __init__(self):
        super().__init__()
        self.done = 0

    def __iter__(self):
        while self.done < 8:
            self.done += 1
            self.chosen = np.argsort(-self.losses, kind="stable")[:BATCH]
            yield pick(self.chosen)
        self.done = 0

    def state_dict(self):
        return {"losses": self.losses, "done": self.done}

    def load_state_dict(self, state):
        self.losses, self.done = state["losses"].copy(), state["done"]


def mine(run, loader, **stateful):
    cell = accumulating()

    def step(x, y):
        loss = cell(x, y)
        loader.told(float(loss))
        return loss

    run.loop(cell, ck.data.resumable(loader, EPOCHS), step, **stateful)


@job(Refused(("did not give the same", "state_dict"), "resume"), "graph")
def hard_examples_by_losses_that_are_not_stored(run):
    mine(run, Mined())


@job(Told("state_dict"), "graph")
def hard_examples_by_losses_in_the_loaders_state(run):
    """The state of a loader is that of its delivery, so what the loop tells it afterwards would be lost."""
    mine(run, StoredMined())


class Losses:
    def __init__(self, mined):
        self.mined = mined

    def state_dict(self):
        return {"losses": self.mined.losses}

    def load_state_dict(self, state):
        self.mined.losses = state["losses"].copy()


class Positioned(StoredMined):
    def state_dict(self):
        return {"done": self.done}

    def load_state_dict(self, state):
        self.done = state["done"]


@job(Told("told it since"), "graph")  # exact, and in doubt: a loader that reads ahead looks the same
def hard_examples_by_losses_given_by_name(run):
    mined = Positioned()
    mine(run, mined, losses=Losses(mined))


class Levels:
    """Adds what the loop has set: a curriculum."""

    def __init__(self):
        self.level = 0

    def __iter__(self):
        for x, y in rows():
            yield x + self.level, y


@job(Refused(("did not give the same", "state_dict"), "resume"), "graph")
def level_of_the_loader_set_by_the_loop(run):
    cell, loader = accumulating(), Levels()
    batches = ck.data.resumable(loader, EPOCHS)
    with run.manager() as manager:
        state = ck.StateManager(cell, batches)
        run.begin(manager.restore(state))
        for batch in batches:
            run.step(batch, cell(*batch), cell=cell)
            loader.level += 1
            manager.step(state)


class Tokens:
    """As many samples in a batch as fit, so that epochs have different lengths."""

    def __init__(self):
        self.epoch = 0

    def __iter__(self):
        self.epoch += 1
        size = 4 + self.epoch
        for first in range(0, SAMPLES - size, size):
            yield pick(range(first, first + size))


@job(Told("epoch"), "pynative")
def epochs_of_different_lengths(run):
    train(run, Tokens())


class Resized:
    """Batches grow with the epochs, and are as many."""

    def __init__(self):
        self.epoch = 0

    def __iter__(self):
        self.epoch += 1
        for first in range(8):
            yield pick((np.arange(3 * self.epoch) * 5 + first) % SAMPLES)


@job(Exact(), "pynative")
def batches_that_grow_with_the_epochs(run):
    train(run, Resized())


@job(Told("batches were delivered"), "graph")
def batches_that_the_loop_skips(run):
    cell = accumulating()
    batches = ck.data.resumable(slices(), EPOCHS)
    with run.manager() as manager:
        state = ck.StateManager(cell, batches)
        run.begin(manager.restore(state))
        for number, batch in enumerate(batches):
            if number % 5 == 0:
                continue
            run.step(batch, cell(*batch), cell=cell)
            manager.step(state)


class Reservoir:
    """Repeats earlier samples beside new ones, by a reservoir that it stores."""

    def __init__(self):
        self.rng = np.random.default_rng(4)
        self.kept = np.arange(4)
        self.done = 0

    def __iter__(self):
        for place in range(self.done, 8):
            new = np.arange(place * 6, place * 6 + 3)
            old = self.rng.choice(self.kept, 3)
            self.kept[self.rng.integers(0, 4)] = new[0]
            self.done = place + 1
            yield pick(np.concatenate((new, old)))
        self.done = 0

    def state_dict(self):
        return {"rng": self.rng.bit_generator.state, "kept": self.kept, "done": self.done}

    def load_state_dict(self, state):
        self.rng.bit_generator.state = state["rng"]
        self.kept, self.done = state["kept"].copy(), state["done"]


@job(Exact(), "graph")
def continual_learning_with_a_reservoir(run):
    train(run, Reservoir())


class Shuffled:
    """Shuffles its list in place, each epoch from where the last one left it."""

    def __init__(self):
        self.order = list(range(SAMPLES))

    def __iter__(self):
        random.shuffle(self.order)
        for first in range(0, SAMPLES, BATCH):
            yield pick(self.order[first : first + BATCH])


@job(Told("global"), "graph")
def list_shuffled_in_place(run):
    train(run, Shuffled())


@job(Told("did not give the same"), "graph")
def list_shuffled_in_place_while_the_loop_draws(run):
    cell = accumulating()

    def step(x, y):
        return cell(x + random.random(), y)

    run.loop(cell, ck.data.resumable(Shuffled(), EPOCHS), step)


class File:
    """Reads numbers from a file, line by line."""

    def __init__(self, path):
        path.write_text("\n".join(str(number) for number in range(SAMPLES)))
        self.path = path

    def __iter__(self):
        with self.path.open() as lines:
            while batch := [int(line) for line in itertools.islice(lines, BATCH)]:
                yield pick(batch)


@job(Exact(), "graph")
def lines_of_a_file(run):
    run.folder.mkdir(exist_ok=True)
    train(run, File(run.folder / "lines.txt"))


@job(Told("unlabelled"), "graph")
def second_loader_that_nobody_stores(run):
    """Semi-supervised: as many unlabelled batches beside the labelled ones."""
    cell = accumulating()
    batches = ck.data.resumable(slices(), EPOCHS)
    unlabelled = iter(Endless())
    with run.manager() as manager:
        state = ck.StateManager(cell, batches)
        run.begin(manager.restore(state))
        for x, y in batches:
            z, _ = next(unlabelled)
            run.step((x, y, z), cell(x + 0.1 * z, y), cell=cell)
            manager.step(state)


@job(Refused(("one resumable()", "zip")), "graph")
def two_resumables_of_one_loop(run):
    cell = accumulating()
    batches, other = ck.data.resumable(slices(), EPOCHS), ck.data.resumable(Endless(), 1)
    with run.manager() as manager:
        state = ck.StateManager(cell, batches)
        run.begin(manager.restore(state))
        for (x, y), (z, _) in zip(batches, other, strict=False):
            run.step((x, y, z), cell(x + 0.1 * z, y), cell=cell)
            manager.step(state)


class Both:
    """Two loaders in one: the way that the two above should go."""

    def __init__(self):
        self.unlabelled = Endless()

    def __iter__(self):
        for (x, y), (z, _) in zip(ShuffleBuffer(7), self.unlabelled, strict=False):
            yield x + 0.1 * z, y


@job(Exact(), "graph")
def two_loaders_in_one(run):
    train(run, Both())


@job(Refused(("can be iterated only once", "state_dict")), "graph", default=True)
def generator_function(run):
    def batches():
        yield from rows()

    train(run, batches())
