"""The position of a pipeline: exactly the next batch, whatever the pipeline is made of."""

from __future__ import annotations

import mindspore.dataset as ds
import numpy as np
import pytest
from mindspore.dataset import transforms, vision
from support.training import UNSET_SEED, begin_process, pipeline, rng_digest, samples

from ckptkit.errors import ResumeError
from ckptkit.mindspore.data.pipeline_position import DatasetPosition

EPOCHS = 3


# Pipelines


class Source:
    """Random access, in Python."""

    def __len__(self):
        return 23

    def __getitem__(self, index):
        return (np.array([index, index * index], np.float32),)


class BackwardFirst:
    """A sampler of the user's own, with another order in every epoch."""

    def __init__(self):
        self._epoch = 0

    def __iter__(self):
        self._epoch += 1
        return iter(np.random.default_rng(self._epoch).permutation(23).tolist())


class OwnSampler(ds.Sampler):
    """A sampler of the user's own that inherits from MindSpore's."""

    def __init__(self):
        super().__init__()
        self._epoch = 0

    def __iter__(self):
        self._epoch += 1
        return iter(np.random.default_rng(self._epoch).permutation(23).tolist())


class Counting(ds.DSCallback):
    """Counts in this process what a map has done."""

    def __init__(self):
        super().__init__(step_size=1)
        self.steps = 0

    def ds_step_end(self, ds_run_context):
        self.steps += 1


def slices(count=23, **options):
    return ds.NumpySlicesDataset({"x": samples(count)["x"]}, **options)


def images():
    pixels = np.random.default_rng(4).integers(0, 255, (23, 10, 10, 3), dtype=np.uint8)
    return ds.NumpySlicesDataset({"x": pixels}, shuffle=True)


def doubled(x):
    return x * 2


def negated(column, info):
    return ([-one for one in column],)


def size_of_batch(info):
    return 2 + info.get_batch_num() % 2


def with_own_child():
    sampler = ds.SequentialSampler()
    sampler.add_child(OwnSampler())
    return sampler


PIPELINES = {
    "slices": lambda: slices(shuffle=True).batch(4, drop_remainder=True),
    "slices-in-order": lambda: slices(shuffle=False).batch(4, drop_remainder=True),
    "remainder": lambda: slices(shuffle=True).batch(4),
    "unbatched": lambda: slices(shuffle=True),
    "shuffle-buffer": lambda: slices(shuffle=False).shuffle(8).batch(4),
    "repeat": lambda: slices(shuffle=True).repeat(2).batch(4),
    "renamed": lambda: pipeline(23).rename(["x"], ["z"]).project(["z"]),
    "random-sampler": lambda: slices(sampler=ds.RandomSampler(replacement=True)).batch(4),
    "map": lambda: slices(shuffle=True).map(doubled, ["x"]).batch(4),
    "crop": lambda: images().map([vision.RandomCrop(6), vision.RandomHorizontalFlip()], ["x"]).batch(4),
    "composed": lambda: images().map(transforms.Compose([vision.CenterCrop(6), vision.HWC2CHW()]), ["x"]).batch(4),
    "map-with-callback": lambda: images().map(vision.CenterCrop(6), ["x"], callbacks=[Counting()]).batch(4),
    "composed-crop": lambda: images().map(transforms.Compose([vision.Rescale(2.0, 0.0), vision.RandomCrop(6)]), ["x"]),
    "zip": lambda: ds.zip((slices(shuffle=True), slices(23, shuffle=True).rename(["x"], ["z"]))).batch(4),
    "concat": lambda: (slices(12, shuffle=True) + slices(11, shuffle=True)).shuffle(5).batch(4),
    "generator": lambda: ds.GeneratorDataset(Source(), ["x"], shuffle=True).batch(4),
    "filter": lambda: slices(shuffle=True).filter(lambda x: x[0] < 1, ["x"]).batch(4),
    "skip-take": lambda: slices(shuffle=True).skip(2).take(19).batch(4),
    "own-sampler": lambda: slices(sampler=BackwardFirst()).batch(4),
    "inherited-sampler": lambda: slices(sampler=OwnSampler()).batch(4),
    "own-child-sampler": lambda: slices(sampler=with_own_child()).batch(4),
    "per-batch-map": lambda: slices(shuffle=True).batch(4, per_batch_map=negated),
    "varying-batch": lambda: slices(shuffle=True).batch(size_of_batch),
}
FAST = {
    *("slices", "slices-in-order", "remainder", "unbatched", "shuffle-buffer", "repeat", "renamed"),
    *("random-sampler", "composed", "zip", "concat", "skip-take"),
}


def taken(dataset):
    """An iterator from where ``dataset`` is positioned."""
    return dataset.create_tuple_iterator(num_epochs=EPOCHS, output_numpy=True)


def rest_of(iterator, epochs):
    """The bytes of every batch, in lists by epoch."""
    return [[b"|".join(column.tobytes() for column in row) for row in iterator] for _ in range(epochs)]


def all_batches(make):
    begin_process()
    return rest_of(taken(make()), EPOCHS)


def recorded_after(make, delivered, **options):
    """What a checkpoint after ``delivered`` batches holds of the data."""
    position = DatasetPosition(make(), **options)
    position.prepare(0, None)
    iterator = taken(position.dataset)
    position.iterator_made()
    batches = (row for _ in range(EPOCHS) for row in iterator)
    for _ in range(delivered):
        next(batches)
    return position.state(delivered)


def positioned(make, delivered, *, seed=5, **options):
    """As a fresh process that resumes after ``delivered`` batches."""
    begin_process(seed)
    state = recorded_after(make, delivered)
    begin_process(seed=None)
    position = DatasetPosition(make(), **options)
    position.check(state)
    position.prepare(delivered, state)
    iterator = taken(position.dataset)
    position.iterator_made()
    return rest_of(iterator, EPOCHS - delivered // position.size)


@pytest.mark.parametrize("name", list(PIPELINES))
def test_next_batches_are_those_of_the_uninterrupted_run(name):
    expected = all_batches(PIPELINES[name])
    size = len(expected[0])
    for delivered in (1, 2, size, size + 2, 2 * size + size - 1):
        epoch, batch = divmod(delivered, size)
        assert positioned(PIPELINES[name], delivered) == [expected[epoch][batch:], *expected[epoch + 1 :]]


@pytest.mark.parametrize("name", sorted(PIPELINES.keys() - {"slices-in-order"}))
def test_pipelines_above_have_another_order_in_every_epoch(name):
    first, second, third = all_batches(PIPELINES[name])
    assert first != second != third


def test_what_mindspore_does_by_default_would_differ():
    # Otherwise the crops above would prove nothing.
    expected = all_batches(PIPELINES["crop"])
    begin_process()
    dataset = PIPELINES["crop"]()
    dataset.set_init_step(2)
    assert rest_of(taken(dataset), 1) != [expected[0][2:]]


@pytest.mark.parametrize("name", list(PIPELINES))
def test_only_exact_pipelines_are_positioned_fast(name, shown):
    state = recorded_after(PIPELINES[name], 4)
    for before in (True, False):
        begin_process()
        ds.config.set_fast_recovery(before)
        position = DatasetPosition(PIPELINES[name]())
        position.prepare(4, state)
        taken(position.dataset)
        position.iterator_made()
        assert ds.config.get_fast_recovery() == before
        assert position.dataset.get_init_step() == 0
    assert ("replaying the data up to batch 4" in shown()) == (name not in FAST)
    assert "replaying it instead" not in shown()


def test_who_lets_go_late_moves_no_other():
    dataset = PIPELINES["map"]()
    first, second = DatasetPosition(dataset), DatasetPosition(dataset)
    first.prepare(0, None)
    second.prepare(0, None)
    first.release()
    assert "create_tuple_iterator" in vars(dataset)
    second.release()
    assert "create_tuple_iterator" not in vars(dataset)


def test_a_class_of_the_users_own_is_replayed(shown):
    class NumpySlicesDataset(ds.NumpySlicesDataset):
        pass

    position = DatasetPosition(NumpySlicesDataset({"x": samples(23)["x"]}, shuffle=True).batch(4))
    position.prepare(2, None)
    taken(position.dataset)
    assert "replaying the data up to batch 2" in shown()


# Seeds


def test_fresh_start_keeps_the_seed_that_was_set():
    begin_process(seed=9)
    position = DatasetPosition(pipeline())
    position.prepare(0, None)
    assert (position.seed, ds.config.get_seed()) == (9, 9)


def test_fresh_start_draws_missing_seed(shown):
    """Another one each time, which disturbs no generator."""
    seeds = set()
    for _ in range(4):
        begin_process(seed=None)
        before = rng_digest()
        position = DatasetPosition(pipeline())
        position.prepare(0, None)
        assert position.seed == ds.config.get_seed()
        assert f"drew {position.seed} and recorded it in the run; ms.set_seed({position.seed})" in shown()
        assert rng_digest() == before
        seeds.add(position.seed)
    assert len(seeds) == 4
    assert UNSET_SEED not in seeds


@pytest.mark.parametrize(("drawn", "seed"), [(UNSET_SEED - 1, UNSET_SEED - 1), (UNSET_SEED, UNSET_SEED + 1)])
def test_seed_that_means_unset_is_never_drawn(monkeypatch, drawn, seed):
    begin_process(seed=None)
    monkeypatch.setattr("secrets.randbelow", lambda below: drawn)
    position = DatasetPosition(pipeline())
    position.prepare(0, None)
    assert position.seed == seed


def test_logged_seed_reproduces_data():
    begin_process(seed=None)
    position = DatasetPosition(pipeline())
    position.prepare(0, None)
    seed, iterator = position.seed, taken(position.dataset)
    position.iterator_made()
    found = rest_of(iterator, EPOCHS)
    begin_process(seed=seed)
    assert rest_of(taken(pipeline()), EPOCHS) == found


def test_resume_takes_recorded_seed_without_disturbing_generators():
    begin_process(seed=None)
    before = rng_digest()
    position = DatasetPosition(pipeline())
    position.prepare(3, {**RECORDED, "seed": 77})
    assert ds.config.get_seed() == 77
    assert rng_digest() == before


def test_seed_change_before_iterator_is_refused():
    position = DatasetPosition(pipeline())
    position.prepare(3, None)
    ds.config.set_seed(8)
    with pytest.raises(ResumeError, match=r"was 5 when the run was resumed and is 8 now"):
        position.iterator_made()
    assert position.dataset.get_init_step() == 0
    assert ds.config.get_fast_recovery()


def test_leaving_brings_back_the_seed_from_before():
    """Also where one process started twice."""
    begin_process(seed=None)
    position = DatasetPosition(pipeline())
    position.prepare(0, None)
    position.prepare(0, None)
    position.leave()
    assert ds.config.get_seed() == UNSET_SEED
    position.prepare(0, None)
    ds.config.set_seed(8)
    position.leave()
    assert ds.config.get_seed() == 8, "the user's, since then"
    position.prepare(0, None)
    position.leave()
    assert ds.config.get_seed() == 8


# What differs


RECORDED = {
    **{"size": 11, "batch_size": 4, "columns": ("x", "y"), "workers": (), "carried_seeds": ()},
    **{"seed": 5, "probe": None, "generators": None},
}


@pytest.mark.parametrize("process_seed", [None, 5])
def test_the_same_pipeline_passes(process_seed):
    begin_process(process_seed)
    DatasetPosition(pipeline()).check(RECORDED)


@pytest.mark.parametrize(
    ("recorded", "message"),
    [
        ({"size": 12}, r"batches per epoch \(.*\): the checkpoint has 12, this dataset has 11"),
        ({"batch_size": 5}, r"samples per batch: the checkpoint has 5, this dataset has 4"),
        ({"columns": ("y", "x")}, r"columns: the checkpoint has \('y', 'x'\), this dataset has \('x', 'y'\)"),
        ({"seed": 6}, r"the checkpoint has 6, this process set 5 \(use ms\.set_seed\(6\) or none\)"),
    ],
)
def test_what_differs_is_named(recorded, message):
    position = DatasetPosition(pipeline())
    before = rng_digest()
    with pytest.raises(ResumeError, match=message):
        position.check(RECORDED | recorded)
    assert (rng_digest(), ds.config.get_seed(), position.dataset.get_init_step()) == (before, 5, 0)


@pytest.mark.parametrize(("debug", "lines"), [("0", 4), ("1", 5)])
def test_all_that_differs_is_named_at_once(debug, lines, monkeypatch):
    monkeypatch.setenv("CKPTKIT_DEBUG", debug)
    with pytest.raises(ResumeError) as raised:
        DatasetPosition(pipeline()).check({**RECORDED, "size": 1, "batch_size": 1, "columns": (), "seed": 1})
    assert len(str(raised.value).splitlines()) == lines


def test_debug_mode_is_refused():
    ds.config.set_debug_mode(True)
    with pytest.raises(ResumeError, match=r"set_debug_mode\(False\)"):
        DatasetPosition(pipeline())


def test_dataset_without_a_batch_is_refused():
    with pytest.raises(ResumeError, match=r"no batch"):
        DatasetPosition(ds.NumpySlicesDataset(samples(3), shuffle=True).batch(4, drop_remainder=True))


def test_state_before_preparing_is_refused():
    with pytest.raises(ResumeError, match=r"was not prepared"):
        DatasetPosition(pipeline()).state(0)


def test_digest_stored_is_that_of_last_batch_delivered():
    position = DatasetPosition(pipeline())
    position.prepare(0, None)
    batches = taken(position.dataset)
    for _ in range(3):
        next(batches)
    assert position.state(3)["probe"] is not None
    assert position.state(2)["probe"] is None, "a loop that reads ahead trained another one last"


def test_learning_the_size_does_not_disturb_the_draws():
    before = rng_digest()
    DatasetPosition(PIPELINES["own-sampler"]())
    DatasetPosition(PIPELINES["slices"]())
    assert rng_digest() == before
