"""One's own loop over resumable batches: exact for every kind of data, once per start, refused where it cannot be."""

from __future__ import annotations

import subprocess
import sys

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
import pytest
from mindspore import nn
from training import (
    SIZE,
    Job,
    accumulation_cell,
    begin_process,
    checkpoints,
    crashed,
    digest,
    disturb,
    pipeline,
    reference,
    samples,
)

import ckptkit as ck
from ckptkit import data
from ckptkit.mindspore.data.digest import digest_of
from ckptkit.mindspore.data.iterable import IterablePosition

EPOCHS = 3


class Loader:
    """Another order in every epoch, from a counter of its own."""

    def __init__(self, rows=12):
        self.rows = rows
        self.epoch = 0

    def __iter__(self):
        self.epoch += 1
        order = np.random.default_rng(self.epoch).permutation(self.rows)
        for start in range(0, self.rows, 3):
            yield batch_of(order[start : start + 3])


class WithState:
    """Goes on with the rest of the epoch that it is in."""

    def __init__(self):
        self.state = {"epoch": 0, "batch": 0}
        self.iterations = 0

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state

    def __iter__(self):
        self.iterations += 1
        order = np.random.default_rng(self.state["epoch"]).permutation(12).reshape(4, 3)
        while self.state["batch"] < 4:
            self.state["batch"] += 1
            yield batch_of(order[self.state["batch"] - 1])
        self.state.update(epoch=self.state["epoch"] + 1, batch=0)


def batch_of(order):
    rng = np.random.default_rng(order[0])
    return rng.random((3, 6), np.float32), rng.random((3, 3), np.float32)


def plain_list():
    return [batch_of([first]) for first in range(5)]


KINDS = {"pipeline": pipeline, "loader": Loader, "list": plain_list, "state": WithState}
CELLS = {"accumulating": accumulation_cell, "foreign": lambda: nn.TrainOneStepCell(*network_and_optimizer())}


def network_and_optimizer():
    cell = accumulation_cell()
    return cell.network, nn.Adam(cell.network.trainable_params(), 1e-2)


class Life:
    """One start of a script with its own loop."""

    def __init__(self, root, make, cell=accumulation_cell, epochs=EPOCHS, every=1000, **options):
        begin_process()
        self.cell = cell()
        self.cell.set_train()
        self.batches = data.resumable(make(), epochs, **options)
        self.state = ck.StateManager(self.cell, self.batches)
        self.manager = ck.CheckpointManager(root, save=ck.SaveEvery(micro_steps=every), when_busy="wait")
        self.seen = {}
        self.epochs = []

    def run(self, until=None):
        disturb()
        with self.manager as manager:
            self.point = manager.restore(self.state)
            for batch in self.batches:
                self.cell(*(ms.Tensor(column) if isinstance(column, np.ndarray) else column for column in batch))
                step = self.state.progress().batches_delivered
                # A fresh start draws no state from the disturbed generators, hence not theirs.
                self.seen[step] = digest_of([batch, *(one.asnumpy() for one in self.cell.get_parameters())])
                self.epochs.append(self.batches.epoch)
                manager.step(self.state)
                if step == until:
                    return self
            manager.save_final(self.state)
        return self


@pytest.mark.covering(1)
@pytest.mark.parametrize("cell", list(CELLS))
@pytest.mark.parametrize("kind", list(KINDS))
def test_an_interrupted_loop_goes_on_exactly(tmp_path, kind, cell):
    def life(root, **options):
        return Life(tmp_path / root, KINDS[kind], CELLS[cell], **options)

    expected = life("whole").run()
    size = len(expected.seen) // EPOCHS
    assert expected.epochs == [epoch for epoch in range(EPOCHS) for _ in range(size)]
    for at in (2, size, 2 * size + 1):
        life(str(at), every=at).run(until=at)
        again = life(str(at)).run()
        assert again.seen == {step: one for step, one in expected.seen.items() if step > at}
        assert again.epochs == expected.epochs[at:]
        assert again.point.batches_delivered == at


@pytest.mark.parametrize("kind", list(KINDS))
def test_finished_loop_continues_with_more_epochs(tmp_path, kind):
    expected = Life(tmp_path / "whole", KINDS[kind]).run().seen
    short = Life(tmp_path / "grown", KINDS[kind], epochs=2).run().seen
    again = Life(tmp_path / "grown", KINDS[kind], epochs=2).run()
    assert again.seen == {}
    assert again.point.batches_delivered == len(short)
    more = Life(tmp_path / "grown", KINDS[kind], epochs=3).run().seen
    assert short | more == expected
    assert not short.keys() & more.keys()


def test_finished_model_train_continues_with_more_epochs(root):
    first = Job().started(checkpoints(root), 2).steps
    more = Job().resumed(checkpoints(root), 3).steps
    assert first | more == reference()
    assert not first.keys() & more.keys()


def test_loop_refuses_checkpoint_with_other_callbacks(root):
    """A callback's checkpoint fits the same loop, except for the state of its other callbacks."""
    Job().started(checkpoints(root, stateful={}), 1)
    life = Life(root, pipeline, epochs=2)
    with pytest.raises(ck.StateMismatchError, match="callbacks"):
        life.run()  # its other callbacks' state has no place in a loop


def test_stateful_iterable_is_not_read_again(tmp_path):
    Life(tmp_path, WithState, every=6).run(until=6)
    life = Life(tmp_path, WithState)
    source = life.batches.position._iterable
    life.run()
    assert source.iterations == 2  # the rest of one epoch, and the last


def test_iterable_state_is_taken_at_delivery():
    """What happens to the iterable after the delivery does not change the recorded state."""
    source = WithState()
    position = IterablePosition(source)
    position.prepare(0, None)
    next(position.batches(2))
    source.state["batch"] = 3  # as by a peek at the next batches
    assert position.state(1, None)["state"] == {"epoch": 0, "batch": 1}


def doubled(x):
    return x * 2


@pytest.mark.parametrize("augmentation", [None, "stateless"])
def test_training_resumes_by_declared_augmentation(root, shown, augmentation):
    """A pipeline declared stateless is positioned; any other is replayed."""

    def mapped():
        return ds.NumpySlicesDataset(samples(), shuffle=True).map(doubled, ["x"]).batch(4)

    expected = Job(data=mapped).uninterrupted(3).steps
    crashed(root, SIZE + 3, data=mapped)
    again = Job(data=mapped).resumed(checkpoints(root, augmentation=augmentation), 3).steps
    assert again == {step: one for step, one in expected.items() if step >= SIZE + 3}
    assert ("replaying the data" in shown()) == (augmentation is None)


def test_a_callback_refuses_another_declaration(root):
    with pytest.raises(ValueError, match='augmentation must be None or "stateless"'):
        checkpoints(root, augmentation="random")


def test_place_with_other_batch_count_is_refused():
    position = IterablePosition(plain_list())
    position.prepare(0, None)
    next(position.batches(2))
    recorded = position.state(1, None)
    assert position.placed(recorded, 1) == (0, 1)
    with pytest.raises(ck.ResumeError, match="2 batches were trained, but its data had handed out 1"):
        position.placed(recorded, 2)


def test_a_training_over_other_data_is_refused(root):
    crashed(root, 4)
    with pytest.raises(ck.ResumeError, match="batch 2, the last one that was trained, is another one now"):
        Job(data=lambda: ds.NumpySlicesDataset(samples(seed=1), shuffle=True).batch(4)).resumed(checkpoints(root), 3)


def test_a_restore_forgets_the_batches_of_before(tmp_path):
    Life(tmp_path, pipeline, every=5).run(until=5)
    life = Life(tmp_path, pipeline)
    life.state.observe_step([np.zeros(3)], None)
    life.manager.restore(life.state)
    assert life.state.last_batch is None


# What is refused


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: iter(plain_list()), r"a list_iterator can be iterated once only"),
        (lambda: (batch for batch in plain_list()), r"a generator can be iterated once only"),
        (lambda: 5, r"a int cannot be iterated"),
    ],
)
def test_what_cannot_be_iterated_again_is_refused(make, message):
    with pytest.raises(TypeError, match=message):
        data.resumable(make(), 2)


@pytest.mark.parametrize("options", [{"seed": 3}, {"augmentation": "stateless"}])
def test_pipeline_options_are_refused_for_an_iterable(options):
    with pytest.raises(ValueError, match="are for a MindSpore pipeline"):
        data.resumable([1], 2, **options)


@pytest.mark.parametrize("epochs", [0, -1, True, 1.5])
def test_impossible_epochs_are_refused(epochs):
    with pytest.raises(ValueError, match="at least 1"):
        data.resumable([1], epochs)


def test_a_loop_before_the_restore_is_refused():
    batches = data.resumable(pipeline(), 2)
    with pytest.raises(ck.ResumeError, match="belong to no training"):
        iter(batches)
    ck.StateManager(accumulation_cell(), batches)
    with pytest.raises(ck.ResumeError, match="was not prepared"):
        iter(batches)


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_second_loop_is_refused(tmp_path, kind):
    life = Life(tmp_path, KINDS[kind]).run(until=2)
    with pytest.raises(ck.ResumeError, match="in one loop and only once"):
        iter(life.batches)


def test_a_restore_after_the_loop_began_is_refused(tmp_path):
    life = Life(tmp_path, pipeline).run(until=2)
    with pytest.raises(ck.ResumeError, match="are being iterated already"):
        ck.CheckpointManager(tmp_path / "other").restore(life.state)


def test_batches_of_another_training_are_refused():
    batches = data.resumable(pipeline(), 2)
    ck.StateManager(accumulation_cell(), batches)
    with pytest.raises(ck.ResumeError, match="belong to another StateManager"):
        ck.StateManager(accumulation_cell(), batches)


def test_a_declaration_at_the_wrong_place_is_refused():
    with pytest.raises(ValueError, match=r"give it to ckptkit\.data\.resumable"):
        ck.StateManager(accumulation_cell(), data.resumable(pipeline(), 2), augmentation="stateless")


def test_an_iterable_that_gives_other_batches_is_refused(tmp_path):
    Life(tmp_path, Loader, every=5).run(until=5)
    with pytest.raises(ck.ResumeError, match=r"the Loader did not give the same 5 batches again"):
        Life(tmp_path, lambda: advanced(Loader())).run()


def advanced(loader):
    loader.epoch = 7
    return loader


def test_an_iterable_that_gives_fewer_batches_is_refused(tmp_path):
    Life(tmp_path, Loader, every=4).run(until=4)
    with pytest.raises(ck.ResumeError, match=r"did not give the same 4 batches again"):
        Life(tmp_path, lambda: Loader(9)).run()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: plain_list()[:4], "size: the checkpoint has 5, this training has 4"),
        (Loader, "iterable: the checkpoint has list, this training has Loader"),
        (pipeline, "taken over a list, this training reads a MindSpore pipeline"),
    ],
)
def test_other_data_is_named(tmp_path, make, message):
    Life(tmp_path, plain_list, every=2).run(until=2)
    with pytest.raises(ck.ResumeError, match=message):
        Life(tmp_path, make).run()


def test_a_pipeline_where_an_iterable_was_is_named(tmp_path):
    Life(tmp_path, pipeline, every=2).run(until=2)
    with pytest.raises(ck.ResumeError, match="taken over a MindSpore pipeline, this training reads a list"):
        Life(tmp_path, plain_list).run()


class Once:
    """Looks as if it could be iterated again."""

    def __init__(self):
        self.rows = iter(plain_list())

    def __iter__(self):
        return self.rows


def test_an_epoch_without_a_batch_is_refused(tmp_path):
    with pytest.raises(ck.ResumeError, match=r"the Once delivered no batch in epoch 1"):
        Life(tmp_path, Once).run()


def test_a_batch_that_was_not_trained_is_noticed(tmp_path):
    life = Life(tmp_path, plain_list)
    life.manager.restore(life.state)
    batches = iter(life.batches)
    next(batches)
    with pytest.raises(ck.ResumeError, match="called 0 times, but 1 batches were delivered"):
        life.manager.save(life.state)


# Seeds


def test_the_seed_of_the_pipeline_can_be_given(tmp_path):
    def order(seed):
        life = Life(tmp_path / f"{seed}", pipeline, seed=seed)
        return digest(life.cell), list(life.run().seen.values())

    first, second = order(9), order(10)
    assert first[0] == second[0]
    assert first[1] != second[1]
    again = Life(tmp_path / "9", pipeline, seed=9, epochs=4).run()
    assert list(again.seen) == [*range(3 * SIZE + 1, 4 * SIZE + 1)]
    with pytest.raises(ck.ResumeError, match=r"the checkpoint has 9, this process set 10"):
        Life(tmp_path / "9", pipeline, seed=10, epochs=5).run()


def test_seed_that_means_unset_is_refused():
    with pytest.raises(ValueError, match="5489 means no seed"):
        data.resumable(pipeline(), 2, seed=5489)


@pytest.mark.parametrize("until", [2, None])
def test_the_process_is_left_as_it_was(tmp_path, until):
    begin_process()
    dataset = pipeline()
    life = Life(tmp_path, lambda: dataset, seed=77)
    life.run(until=until)
    del life.batches
    assert (ds.config.get_seed(), ds.config.get_fast_recovery(), dataset.get_init_step()) == (5, True, 0)
    assert not vars(dataset).keys() & {"create_tuple_iterator", "create_dict_iterator"}


# The facade


def test_the_facade_is_lazy_and_complete():
    code = "import sys, ckptkit.data as d; print('mindspore' in sys.modules, *d.__all__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["False", *ck.data.__all__]
    known = {"Augmented", "EpochSampler", "GlobalIndices", "GlobalSampler", "resumable", "sample_rng"}
    assert set(ck.data.__all__) == known
    assert all(hasattr(data, name) for name in data.__all__)
    assert set(data.__all__) <= {*dir(data)}
    with pytest.raises(AttributeError, match=r"'ckptkit\.data' has no attribute 'nothing'"):
        data.nothing  # noqa: B018
