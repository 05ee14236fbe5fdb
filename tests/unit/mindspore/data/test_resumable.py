"""One's own loop over resumable batches: exact for every kind of data, once per start, refused where it cannot be."""

import itertools
import threading
import types

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
import pytest
from mindspore import nn
from mindspore.experimental import optim
from support.loaders import Again, DrawingAgain, Rows, WithState
from support.options import grouped
from support.own_loop import OwnLoop
from support.training import Job, Mlp, accumulation_cell, adam, begin_process, checkpoints, digest, later, pipeline

import ckptkit as ck
from ckptkit import data
from ckptkit.mindspore.data.batch_digest import digest_of
from ckptkit.mindspore.train.micro_steps import counting_of

EPOCHS = 3


def plain_list(size=5):
    rng = np.random.default_rng(0)
    return [(rng.random((3, 6), np.float32), rng.random((3, 3), np.float32)) for _ in range(size)]


def small_pipeline():
    return pipeline(16, 4)


KINDS = {
    "pipeline": small_pipeline,
    "list": plain_list,
    **{kind.__name__: lambda kind=kind: kind(plain_list(6)) for kind in (Again, DrawingAgain, WithState)},
}
CELLS = {
    "accumulating": accumulation_cell,
    "foreign": lambda: nn.TrainOneStepCell(network := Mlp(), adam(network.trainable_params())),
}


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
            self.source.tell(int(batch[0].mean() * 100))

    def look(self, batch):
        self.epochs.append(self.batches.epoch)
        # A fresh start draws no state from the disturbed generators, hence not theirs.
        return digest_of([batch, *(parameter.asnumpy() for parameter in self.cell.get_parameters())])


@pytest.mark.parametrize(
    ("kind", "cell", "place"),
    [
        ("pipeline", "accumulating", "within"),
        ("list", "foreign", "epoch end"),
        ("Again", "accumulating", "epoch end"),
        ("DrawingAgain", "foreign", "later"),
        ("WithState", "accumulating", "later"),
        ("WithState", "foreign", "epoch end"),
        ("pipeline", "accumulating", "finished"),
        ("DrawingAgain", "accumulating", "finished"),
        ("WithState", "accumulating", "finished"),
    ],
)
def test_an_interrupted_loop_goes_on_exactly(tmp_path, kind, cell, place):
    def life(root, **options):
        return Life(tmp_path / root, KINDS[kind], CELLS[cell], **options)

    expected = life("whole").run()
    size = len(expected.steps) // EPOCHS
    assert expected.epochs == [epoch for epoch in range(EPOCHS) for _ in range(size)]
    at = {"within": 2, "epoch end": size, "later": 2 * size + 1, "finished": size}[place]
    if place == "finished":  # it continues with more epochs, and trains nothing without
        assert [len(life("cut", epochs=1).run().steps) for _ in range(2)] == [size, 0]
    else:
        life("cut", every=at).run(until=at)
    again = life("cut").run()
    assert again.steps == later(expected.steps, at)
    assert again.epochs == expected.epochs[at:]
    assert again.point.batches_delivered == at


@pytest.mark.parametrize(
    ("kind", "mid_cycle", "until", "begins"),
    [("list", "align", 7, 5), ("list", "rewind", 7, 5), ("Again", "exact", 5, 5), ("DrawingAgain", "rewind", 2, 0)],
)
def test_cycles_that_an_epoch_ends_go_on_exactly(tmp_path, kind, mid_cycle, until, begins):
    """Where its size is not known, the next batch ends it; the order of a run's begin is drawn once more."""

    def life(root):
        begin_process()
        # Without BatchNorm, which a rewind refuses by itself.
        cell = accumulation_cell(network=lambda: nn.WithLossCell(nn.Dense(6, 3), nn.MSELoss()), remainder="flush")
        options = {"mid_cycle": mid_cycle, "save": ck.SaveEvery(micro_steps=1), "keep": ck.KeepLatest(99)}
        return OwnLoop(tmp_path / root, cell, data.resumable(KINDS[kind](), 2), **options)

    expected = life("whole").run()
    assert expected.cell.counters.updates == 4
    if kind == "list":
        saved = [info.progress for info in ck.CheckpointManager(tmp_path / "whole").checkpoints()]
        places = [(progress.cycles, progress.micro_step) for progress in saved]
        assert places == [(cycle, 0) for cycle in range(mid_cycle == "align", 5)]
    life("run").run(until=until)
    resumed = life("run").run()
    assert resumed.steps == later(expected.steps, begins)
    assert resumed.cell.counters == expected.cell.counters


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
    """And a second one after it; the first may begin then."""
    for make in (pipeline, plain_list):
        begin_process()
        batches, others = data.resumable(make(), 2), data.resumable(plain_list(), 2)
        with pytest.raises(ck.ResumeError, match="do not belong to a training"):
            iter(batches)
        state = ck.StateManager(accumulation_cell(), batches)
        with pytest.raises(ck.ResumeError, match="was not prepared"):
            iter(batches)
        with ck.CheckpointManager(tmp_path / make.__name__) as manager:
            manager.restore(state)
            with pytest.raises(ck.ResumeError, match=r"one resumable\(\): to read two loaders, combine .*\(zip\)"):
                zip(batches, others, strict=False)
            with pytest.raises(ck.ResumeError, match="in one loop and only once"):
                iter(batches)
        with pytest.raises(ck.ResumeError, match="are being iterated already"):
            ck.CheckpointManager(tmp_path / "other").restore(state)


def test_checkpoint_of_a_model_with_callbacks_is_refused(root):
    Job().started(checkpoints(root, stateful={}), 1)
    with pytest.raises(ck.StateMismatchError, match="callbacks"):
        Life(root, pipeline, epochs=2).run()  # its other callbacks' state has no place in a loop


def test_epochs_of_unequal_length_end_the_loop(tmp_path):
    for second, given in ((2, 5), (4, 6)):
        source = Rows(3, 3, second)  # the first time to learn the size
        batches = data.resumable(ds.GeneratorDataset(source, ["x"]).batch(1), 2)
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


# A loop that takes batches before it trains them would skip those that it holds: it is refused, or named


class Functional:
    """A loop over network and optimizer, neither of which counts its calls."""

    def __init__(self, root, **options):
        begin_process()
        net = Mlp()
        self.optimizer = nn.Adam(net.trainable_params(), 1e-2)
        self.gradients = ms.value_and_grad(net, None, list(self.optimizer.parameters))
        self.batches = ck.data.resumable(pipeline(), 1)
        self.state = ck.StateManager([net, self.optimizer], self.batches, **grouped(**options))
        self.manager = ck.CheckpointManager(root, save=ck.SaveEvery(micro_steps=1), saving=ck.Saving(when_busy="wait"))
        self.manager.restore(self.state)

    def train(self, batch):
        _, gradients = self.gradients(*batch)
        self.optimizer(gradients)


def test_a_thread_that_reads_ahead_is_refused(tmp_path):
    """Before the first save, so that no start goes on from a wrong place."""
    loop, taken = Functional(tmp_path), []
    reader = threading.Thread(target=lambda: taken.extend(itertools.islice(loop.batches, 2)))
    reader.start()
    reader.join()
    loop.train(taken[0])
    for save in (loop.manager.step, loop.manager.save_final, loop.manager.save):
        with pytest.raises(ck.ResumeError, match="a thread other than the training thread"):
            save(loop.state)
    assert loop.manager.checkpoints() == []


def test_a_loop_that_reads_ahead_is_named(tmp_path, shown):
    for depth in (1, 2):
        loop = Functional(tmp_path / str(depth))
        left = iter(loop.batches)
        batch, *_ = [next(left) for _ in range(depth + 1)]
        loop.state.progress()  # a look before the batch is trained
        loop.train(batch)
        words = f"may not be bit-exact. {depth + 1} batches of resumable() were taken before"
        assert words not in shown()
        loop.manager.step(loop.state)
        loop.manager.close()
        assert words in shown()


def test_strict_refuses_a_cycle_read_ahead(tmp_path):
    cycle = types.SimpleNamespace(accumulation_steps=3, micro_step=0)
    loop = Functional(tmp_path, cycle=cycle, strict=True)
    left = iter(loop.batches)
    batch, *_ = [next(left) for _ in range(4)]
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
    """A loop may train with one of two, as in the phases of a GAN; MindSpore's optimizers count by three names."""
    counters = {nn.Adam: "global_step", optim.Adam: "state_step", optim.Adamax: "step_t"}
    for kinds, steps in (
        *(((nn.Adam, nn.Adam), steps) for steps in ((3, 0), (0, 3), (1, 0), (0, 1), (2, 1))),
        ((optim.Adam,), (1,)),
        ((optim.Adamax,), (1,)),
    ):
        optimizers = [kind(Mlp().trainable_params()) for kind in kinds]
        counting = counting_of(nn.Dense(2, 2), optimizers)
        counting.begin_loop()
        counting.deliver(3)
        for kind, optimizer, step in zip(kinds, optimizers, steps, strict=True):
            counter = getattr(optimizer, counters[kind])
            counter.set_data(ms.Tensor(np.full(counter.shape, step), counter.dtype))
        assert (counting.read_ahead() is None) == (max(steps) == 3), (kinds, steps)
