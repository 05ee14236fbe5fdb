"""One's own loop over resumable batches: exact for every kind of data, once per start, refused where it cannot be."""

from __future__ import annotations

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
import pytest
from mindspore import nn, ops
from support.own_loop import OwnLoop
from support.process import forked
from support.training import Job, accumulation_cell, begin_process, checkpoints, crashed, digest, pipeline

import ckptkit as ck
from ckptkit import data
from ckptkit.mindspore.data.batch_digest import digest_of

EPOCHS = 3


def batch_of(order):
    rng = np.random.default_rng(order[0])
    return rng.random((3, 6), np.float32), rng.random((3, 3), np.float32)


class Loader:
    """Another order in every epoch, from a counter of its own."""

    epoch = 0

    def order(self):
        return np.random.default_rng(self.epoch).permutation(12).reshape(4, 3)

    def __iter__(self):
        self.epoch += 1
        return map(batch_of, self.order())


class DrawingLoader(Loader):
    """Another order in every epoch, at once, from the global generator."""

    def order(self):
        return np.random.permutation(12).reshape(4, 3)


class WithState(Loader):
    """Goes on with the rest of the epoch that it is in; what the loop tells it decides the order of the next one."""

    done, told = 0, 0

    def order(self):
        return np.random.default_rng([self.epoch, self.told]).permutation(12).reshape(4, 3)

    def state_dict(self):
        return {"epoch": self.epoch, "done": self.done, "told": self.told, "order": self.now}

    def load_state_dict(self, state):
        self.epoch, self.done, self.told, self.now = (state[name] for name in ("epoch", "done", "told", "order"))

    def __init__(self):
        self.now = self.order()

    def __iter__(self):
        while self.done < 4:
            self.done += 1
            yield batch_of(self.now[self.done - 1])
        self.epoch, self.done = self.epoch + 1, 0
        self.now = self.order()

    def tell(self, x):
        self.told += int(x.mean() * 100)


def plain_list():
    return [batch_of([first]) for first in range(5)]


class Unsized:
    def __iter__(self):
        return iter(plain_list())


def small_pipeline():
    return pipeline(16, 4)


def network_and_optimizer():
    cell = accumulation_cell()
    return cell.network, nn.Adam(cell.network.trainable_params(), 1e-2)


KINDS = {
    "pipeline": small_pipeline,
    "list": plain_list,
    **{kind.__name__: kind for kind in (Loader, DrawingLoader, WithState)},
}
CELLS = {"accumulating": accumulation_cell, "foreign": lambda: nn.TrainOneStepCell(*network_and_optimizer())}


class Life(OwnLoop):
    """Notes the batches, too, and which epochs they are of; ``change`` gets each batch before it is trained."""

    def __init__(self, root, make, cell=accumulation_cell, *, epochs=EPOCHS, every=1000, change=None, **options):
        begin_process()
        self.source, self.change, self.epochs = make(), change, []
        super().__init__(
            root, cell(), data.resumable(self.source, epochs, **options), save=ck.SaveEvery(micro_steps=every)
        )

    def train(self, batch):
        super().train(batch if self.change is None else self.change(batch))
        if isinstance(self.source, WithState):
            self.source.tell(batch[0])

    def look(self, batch):
        self.epochs.append(self.batches.epoch)
        # A fresh start draws no state from the disturbed generators, hence not theirs.
        return digest_of([batch, *(parameter.asnumpy() for parameter in self.cell.get_parameters())])


def later(steps, at):
    return {step: bits for step, bits in steps.items() if step > at}


@pytest.mark.parametrize(
    ("kind", "cell", "place"),
    [
        ("pipeline", "accumulating", "within"),
        ("list", "foreign", "epoch end"),
        ("Loader", "accumulating", "epoch end"),
        ("DrawingLoader", "foreign", "later"),
        ("WithState", "accumulating", "later"),
        ("WithState", "foreign", "epoch end"),
    ],
)
def test_an_interrupted_loop_goes_on_exactly(tmp_path, kind, cell, place):
    def life(root, **options):
        return Life(tmp_path / root, KINDS[kind], CELLS[cell], **options)

    expected = life("whole").run()
    size = len(expected.steps) // EPOCHS
    assert expected.epochs == [epoch for epoch in range(EPOCHS) for _ in range(size)]
    at = {"within": 2, "epoch end": size, "later": 2 * size + 1}[place]
    life("cut", every=at).run(until=at)
    again = life("cut").run()
    assert again.steps == later(expected.steps, at)
    assert again.epochs == expected.epochs[at:]
    assert again.point.batches_delivered == at


@pytest.mark.parametrize("kind", ["pipeline", "DrawingLoader", "WithState"])
def test_finished_loop_continues_with_more_epochs(tmp_path, kind):
    expected = Life(tmp_path / "whole", KINDS[kind], epochs=2).run().steps
    short = Life(tmp_path / "grown", KINDS[kind], epochs=1).run().steps
    again = Life(tmp_path / "grown", KINDS[kind], epochs=1).run()
    assert again.steps == {}
    assert again.point.batches_delivered == len(short)
    more = Life(tmp_path / "grown", KINDS[kind], epochs=2).run().steps
    assert short | more == expected
    assert not short.keys() & more.keys()


# Epochs that end within a cycle


class Quiet(nn.Cell):
    """Without BatchNorm, which a rewind refuses by itself."""

    def __init__(self):
        super().__init__()
        self.out = nn.Dense(6, 3)

    def construct(self, x, y):
        return ops.square(self.out(x) - y).mean()


def epoch_life(root, make, *, k=8, epochs=2, remainder="flush", **options):
    begin_process()
    cell = accumulation_cell(k, network=Quiet, remainder=remainder)
    return OwnLoop(root, cell, data.resumable(make(), epochs), keep=ck.KeepLatest(99), **options)


def places(root):
    found = [info.progress for info in ck.CheckpointManager(root).checkpoints()]
    return [(progress.cycles, progress.micro_step) for progress in found]


@pytest.mark.parametrize(("remainder", "make"), [("flush", small_pipeline), ("drop", lambda: plain_list()[:4])])
def test_saves_see_boundary_at_epoch_end(tmp_path, remainder, make):
    """K is larger than an epoch, so that there are no others."""
    options = {"make": make, "epochs": 3, "remainder": remainder, "save": ck.SaveEvery(optimizer_steps=1)}
    expected = epoch_life(tmp_path / "whole", **options).run()
    assert places(tmp_path / "whole") == [(1, 0), (2, 0), (3, 0)]
    assert expected.cell.counters.updates == (3 if remainder == "flush" else 0)
    epoch_life(tmp_path / "run", **options).run(until=10)
    assert epoch_life(tmp_path / "run", **options).run().steps == later(expected.steps, 8)


@pytest.mark.parametrize(
    ("make", "mid_cycle", "until", "begins"),
    [(plain_list, "align", 7, 5), (plain_list, "rewind", 7, 5), (Unsized, "exact", 5, 5)],
)
def test_cycles_that_an_epoch_ends_go_on_exactly(tmp_path, make, mid_cycle, until, begins):
    """Where its size is not known, the next batch ends it."""
    options = {"make": make, "k": 4, "mid_cycle": mid_cycle, "save": ck.SaveEvery(micro_steps=1)}
    expected = epoch_life(tmp_path / "whole", **options).run()
    assert expected.cell.counters.updates == 4
    if mid_cycle != "exact":
        assert places(tmp_path / "whole") == [(cycle, 0) for cycle in range(mid_cycle == "align", 5)]
    epoch_life(tmp_path / "run", **options).run(until=until)
    resumed = epoch_life(tmp_path / "run", **options).run()
    assert resumed.steps == later(expected.steps, begins)
    assert resumed.cell.counters == expected.cell.counters


def test_eager_order_is_redrawn_at_run_start(tmp_path):
    options = {"make": DrawingLoader, "epochs": 1, "save": ck.SaveEvery(micro_steps=1)}
    expected = epoch_life(tmp_path / "whole", **options).run()
    epoch_life(tmp_path / "run", mid_cycle="rewind", **options).run(until=2)
    assert places(tmp_path / "run") == [(0, 0)]
    assert epoch_life(tmp_path / "run", mid_cycle="rewind", **options).run().steps == expected.steps


# What the loop may do with a batch


class Dicts:
    def __iter__(self):
        return ({"x": x, "y": y} for x, y in plain_list())


def take_apart(batch):
    x, y = batch.pop("x"), batch.pop("y")
    x *= 0.5
    return x, y


def mask(batch):
    batch[0][:, 0] = 0.0
    return batch


@pytest.mark.parametrize(("make", "change"), [(Dicts, take_apart), (small_pipeline, mask)])
def test_a_loop_may_change_its_batches(tmp_path, make, change):
    """Columns that are popped, or changed in place, are compared as they were handed out."""
    expected = Life(tmp_path / "whole", make, epochs=1, change=change).run().steps
    Life(tmp_path / "run", make, epochs=1, every=3, change=change).run(until=3)
    assert Life(tmp_path / "run", make, epochs=1, change=change).run().steps == later(expected, 3)


def doubled(x):
    return x * 2


def test_training_resumes_by_declared_augmentation(root, shown):
    def mapped():
        return pipeline().map(doubled, ["x"])

    expected = Job(data=mapped).uninterrupted(1).steps
    crashed(root, 4, 1, data=mapped)
    assert Job(data=mapped).resumed(checkpoints(root, augmentation="stateless"), 1).steps == later(expected, 3)
    assert "replaying the data" not in shown()


# What is refused


def test_what_does_not_fit_is_refused():
    for options, message in (
        ({"seed": 3}, "are for a MindSpore pipeline"),
        ({"augmentation": "stateless"}, "are for a MindSpore pipeline"),
        ({"as_dict": True}, "let it deliver dicts itself"),
        *(({"epochs": epochs}, "at least 1") for epochs in (0, -1, True, 1.5)),
    ):
        with pytest.raises(ValueError, match=message):
            data.resumable([1], **{"epochs": 2, **options})
    with pytest.raises(ValueError, match="5489 means no seed"):
        data.resumable(pipeline(), 2, seed=5489)
    batches = data.resumable(pipeline(), 2)
    with pytest.raises(ValueError, match=r"give it to ckptkit\.data\.resumable"):
        ck.StateManager(accumulation_cell(), batches, training=ck.Training(augmentation="stateless"))
    batches = data.resumable(pipeline(), 2)
    ck.StateManager(accumulation_cell(), batches)
    with pytest.raises(ck.ResumeError, match="belong to another StateManager"):
        ck.StateManager(accumulation_cell(), batches)


def test_a_loop_before_the_restore_is_refused(tmp_path):
    """And may begin after it."""
    for make in (pipeline, plain_list):
        begin_process()
        batches, others = data.resumable(make(), 2), data.resumable(Loader(), 2)
        with pytest.raises(ck.ResumeError, match="do not belong to a training"):
            iter(batches)
        state = ck.StateManager(accumulation_cell(), batches)
        with pytest.raises(ck.ResumeError, match="was not prepared"):
            iter(batches)
        with ck.CheckpointManager(tmp_path / make.__name__) as manager:
            manager.restore(state)
            with pytest.raises(ck.ResumeError, match=r"one resumable\(\): to read two loaders, combine .*\(zip\)"):
                zip(batches, others, strict=False)


def test_a_second_loop_is_refused(tmp_path):
    for kind in ("pipeline", "list"):
        life = Life(tmp_path / kind, KINDS[kind]).run(until=2)
        with pytest.raises(ck.ResumeError, match="in one loop and only once"):
            iter(life.batches)
        with pytest.raises(ck.ResumeError, match="are being iterated already"):
            ck.CheckpointManager(tmp_path / "other").restore(life.state)


def test_checkpoint_of_other_data_is_refused(root, tmp_path):
    Life(tmp_path / "list", plain_list, every=2).run(until=2)
    with pytest.raises(ck.ResumeError, match="made with a list, but this training reads a MindSpore pipeline"):
        Life(tmp_path / "list", pipeline).run()
    Job().started(checkpoints(root, stateful={}), 1)
    with pytest.raises(ck.StateMismatchError, match="callbacks"):
        Life(root, pipeline, epochs=2).run()  # its other callbacks' state has no place in a loop


class Rows:
    """As many in each epoch as is said; MindSpore counts those of the first time."""

    def __init__(self, *counts):
        self.counts = iter(counts)

    def __iter__(self):
        for row in range(next(self.counts)):
            yield (np.full(6, row, np.float32),)


def test_epochs_of_unequal_length_end_the_loop(tmp_path):
    for second, given in ((2, 5), (4, 6)):
        batches = data.resumable(ds.GeneratorDataset(Rows(3, 3, second), ["x"]).batch(1), 2)
        ck.CheckpointManager(tmp_path / str(second)).restore(ck.StateManager(nn.Dense(2, 2), batches))
        left = iter(batches)
        for _ in range(given):
            next(left)
        with pytest.raises(ck.ResumeError, match="an epoch has 3 batches, but epoch 1 has another number"):
            next(left)


def test_calls_that_do_not_match_the_batches_are_noticed(tmp_path):
    life = Life(tmp_path / "left out", plain_list)
    life.manager.restore(life.state)
    next(iter(life.batches))
    with pytest.raises(ck.ResumeError, match=r"called 0 times, but 1 batches were delivered.*read ahead before resum"):
        life.manager.save(life.state)
    life = Life(tmp_path / "added", plain_list)
    life.manager.restore(life.state)
    life.cell(*map(ms.Tensor, plain_list()[0]))
    with pytest.raises(ck.ResumeError, match="0 batches were handed out, but training counts 1"):
        life.manager.save(life.state)


# Seeds


def test_the_seed_of_the_pipeline_can_be_given(tmp_path):
    def order(seed):
        life = Life(tmp_path / f"{seed}", small_pipeline, epochs=1, seed=seed)
        return digest(life.cell), list(life.run().steps.values())

    first, second = order(9), order(10)
    assert first[0] == second[0]
    assert first[1] != second[1]
    again = Life(tmp_path / "9", small_pipeline, seed=9, epochs=2).run()
    assert min(again.steps) == len(first[1]) + 1
    with pytest.raises(ck.ResumeError, match=r"the checkpoint has 9, this process set 10"):
        Life(tmp_path / "9", small_pipeline, seed=10, epochs=3).run()


def test_the_process_is_left_as_it_was(tmp_path):
    for until in (2, None):
        dataset = small_pipeline()
        life = Life(tmp_path / str(until), lambda dataset=dataset: dataset, epochs=1, seed=77)
        life.run(until=until)
        del life.batches
        assert (ds.config.get_seed(), ds.config.get_fast_recovery(), dataset.get_init_step()) == (5, True, 0)
        assert not vars(dataset).keys() & {"create_tuple_iterator", "create_dict_iterator"}


def test_the_facade_is_lazy_and_complete():
    code = "import sys, ckptkit as ck; print('mindspore' in sys.modules, *ck.data.__all__)"
    assert forked("-c", code).stdout.split() == ["False", *ck.data.__all__]
    known = {"Augmented", "EpochSampler", "GlobalIndices", "GlobalSampler", "resumable", "sample_rng"}
    assert set(ck.data.__all__) == known
    assert all(hasattr(data, name) for name in data.__all__)
    assert set(data.__all__) <= {*dir(data)}
    with pytest.raises(AttributeError, match=r"'ckptkit\.data' has no attribute 'nothing'"):
        data.nothing  # noqa: B018
