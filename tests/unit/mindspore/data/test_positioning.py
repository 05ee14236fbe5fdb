"""How a position proves itself, what it refuses, and what it says while it works."""

from __future__ import annotations

import random

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
import pytest
from mindspore.dataset import vision
from support.training import begin_process, pipeline, rng_digest, samples

from ckptkit import data
from ckptkit.errors import ResumeError
from ckptkit.mindspore.data.batch_digest import digest_of
from ckptkit.mindspore.data.iterable import IterablePosition
from ckptkit.mindspore.data.pipeline import python_code_here
from ckptkit.mindspore.data.pipeline_position import DatasetPosition
from ckptkit.mindspore.data.replay import replay

EPOCHS = 3


def doubled(x):
    return x * 2


def maps(**options):
    return ds.NumpySlicesDataset({"x": samples(23)["x"]}, shuffle=True).map(doubled, ["x"], **options).batch(4)


def crops(workers):
    pixels = np.random.default_rng(4).integers(0, 255, (23, 10, 10, 3), dtype=np.uint8)
    return ds.NumpySlicesDataset({"x": pixels}).map(vision.RandomCrop(6), ["x"], num_parallel_workers=workers).batch(4)


def all_batches(dataset, **options):
    iterator = dataset.create_tuple_iterator(num_epochs=EPOCHS, **options)
    return [batch for _ in range(EPOCHS) for batch in iterator]


def recorded_after(make, delivered, **options):
    """What a checkpoint holds of the data, and the digests of the batches after it."""
    begin_process()
    position = DatasetPosition(make(), **options)
    position.prepare(0, None)
    iterator = position.dataset.create_tuple_iterator(num_epochs=EPOCHS)
    position.iterator_made()
    batches = (digest_of(batch) for _ in range(EPOCHS) for batch in iterator)
    for _ in range(delivered):
        next(batches)
    state = position.state(delivered)
    expected = list(batches)
    begin_process()
    return state, expected


def resumed(make, delivered, state, **options):
    position = DatasetPosition(make(), **options)
    position.check(state)
    position.prepare(delivered, state)
    return position


def rest(position, delivered, **options):
    iterator = position.dataset.create_tuple_iterator(num_epochs=EPOCHS, **options)
    return [digest_of(batch) for _ in range(EPOCHS - delivered // position.size) for batch in iterator]


# The digest


class OfAnotherLibrary:
    """A tensor that NumPy can read."""

    def __init__(self, array):
        self.array = array

    def __array__(self, dtype=None, copy=None):
        return self.array


def test_digest_depends_on_bits_types_shapes_only():
    """It does not depend on how a batch is held."""
    x = np.arange(6, dtype=np.float32)
    same = [[x], (x,), {"x": x}, [ms.Tensor(x)], [x[::-1][::-1]], [OfAnotherLibrary(x)]]
    assert len({digest_of(one) for one in same}) == 1
    others = [[x], [x.reshape(2, 3)], [x.astype(np.int32)], [x, x], [-x], [x[:5]], [np.array(["a", "b"])], [1], ["1"]]
    others += [[{"a": x}], [{"b": x}], [True], [None], [b"1"], [np.array(["a", "c"])], [[x], []], [[], [x]]]
    others += [[x.view(np.int32)], [[x], x], [[x, x]], [{"a": x}, x], [{"a": x, "b": x}]]
    assert len({digest_of(one) for one in others}) == len(others)
    assert digest_of([np.asfortranarray(x.reshape(2, 3))]) == digest_of([x.reshape(2, 3)])
    assert digest_of([object()]) is None


def test_undigestible_batch_is_unchecked_and_logged_once(shown):
    position = IterablePosition([object(), object()])
    position.prepare(0, None)
    for delivered, _ in enumerate(position.batches(1), start=1):
        assert position.state(delivered)["probe"] is None
    assert shown().count("a resume cannot check its position") == 1


@pytest.mark.parametrize("do_copy", [False, True])
def test_a_batch_that_is_held_keeps_its_bits(do_copy):
    held = [
        (batch, digest_of(batch)) for batch in pipeline(4000, 10).create_tuple_iterator(num_epochs=1, do_copy=do_copy)
    ]
    assert [digest_of(batch) for batch, _ in held] == [digest for _, digest in held]


# The net


@pytest.mark.parametrize("make", [pipeline, maps], ids=["fast", "replay"])
@pytest.mark.parametrize("delivered", [1, 3, 6, 11, 12])
def test_any_dataset_iterator_starts_at_next_batch(make, delivered):
    state, expected = recorded_after(make, delivered)
    assert rest(resumed(make, delivered, state), delivered, output_numpy=True, do_copy=True) == expected
    position = resumed(make, delivered, state)
    first = next(position.dataset.create_dict_iterator(EPOCHS))
    assert digest_of(first) == expected[0]


def test_checkpoint_without_digest_is_positioned(shown):
    state, expected = recorded_after(pipeline, 5)
    assert rest(resumed(pipeline, 5, state | {"probe": None}), 5) == expected
    assert "replay" not in shown()


def test_save_before_next_batch_keeps_digest():
    state, _ = recorded_after(pipeline, 5)
    position = resumed(pipeline, 5, state)
    assert position.state(5) == state
    assert position.state(6)["probe"] is None


@pytest.mark.parametrize("make", [pipeline, maps], ids=["fast", "replay"])
def test_another_batch_than_was_trained_last_is_refused(make, shown):
    state, _ = recorded_after(make, 5)
    position = resumed(make, 5, state | {"probe": "0" * 32})
    before = rng_digest()
    with pytest.raises(
        ResumeError, match=r"<- NumpySlicesDataset: batch 4, the last one that was trained, is different"
    ):
        rest(position, 5)
    assert ("replaying it instead" in shown()) == (make is pipeline)
    assert rng_digest() == before
    assert (position.dataset.get_init_step(), ds.config.get_fast_recovery()) == (0, True)


def test_positioning_disturbs_no_generator():
    for make in (pipeline, maps):
        state, _ = recorded_after(make, 5)
        random.seed(8)
        np.random.seed(8)
        before = rng_digest()
        position = resumed(make, 5, state)
        rest(position, 5)
        position.iterator_made()
        assert rng_digest() == before
        assert position.own_draws == frozenset()


class DrawingSampler:
    """Takes its order from the global generator of NumPy, as code of a user may."""

    def __iter__(self):
        return iter(np.random.permutation(23).tolist())


class DrawingChild(ds.Sampler):
    """Draws so as what a sampler of MindSpore chooses from."""

    def __iter__(self):
        return iter(np.random.permutation(23).tolist())


def with_drawing_child():
    sampler = ds.SequentialSampler()
    sampler.add_child(DrawingChild())
    return sampler


@pytest.mark.parametrize("sampler", [DrawingSampler, with_drawing_child], ids=["alone", "child"])
def test_sampler_that_draws_globally_draws_on_exactly(shown, sampler):
    def make():
        return ds.NumpySlicesDataset({"x": samples(23)["x"]}, sampler=sampler()).batch(4)

    state, expected = recorded_after(make, 8)
    np.random.seed(77)
    position = resumed(make, 8, state)
    assert rest(position, 8) == expected
    assert position.own_draws == {"numpy"}
    assert "draws from the global generators of numpy" in shown()


def test_later_iterators_begin_at_the_first_epoch():
    for make in (pipeline, lambda: augmented(3)):
        expected = [digest_of(batch) for batch in all_batches(make())]
        state, _ = recorded_after(make, 12)
        position = resumed(make, 12, state)
        rest(position, 12)
        position.iterator_made()
        assert [digest_of(batch) for batch in all_batches(position.dataset)] == expected


def test_too_few_epochs_for_the_position_are_refused():
    state, _ = recorded_after(pipeline, 11)
    position = resumed(pipeline, 11, state)
    with pytest.raises(ResumeError, match=r"num_epochs=1 are 11 batches, but 11 were delivered"):
        iter(position.dataset)


@pytest.mark.parametrize("make", [pipeline, maps], ids=["fast", "replay"])
def test_endless_iterator_is_positioned(make):
    state, expected = recorded_after(make, 8)
    for options in ({}, {"num_epochs": -1}):
        iterator = resumed(make, 8, state).dataset.create_dict_iterator(**options)
        assert digest_of(next(iterator)) == expected[0]


def test_the_iterator_has_all_that_mindspores_has():
    position = DatasetPosition(pipeline())
    position.prepare(0, None)
    iterator = position.dataset.create_tuple_iterator(num_epochs=EPOCHS)
    next(iterator)
    assert iterator.get_col_names() == ["x", "y"]
    iterator.stop()


def test_an_iterator_of_another_dataset_is_noticed():
    state, _ = recorded_after(pipeline, 5)
    position = resumed(pipeline, 5, state)
    pipeline().create_tuple_iterator(num_epochs=EPOCHS)
    with pytest.raises(ResumeError, match=r"no iterator was made of the dataset that was restored"):
        position.iterator_made()


class Growing:
    def __init__(self, rows):
        self.epoch = 0
        self.rows = rows

    def __iter__(self):
        self.epoch += 1  # the first time to learn the size
        for row in range(self.rows if self.epoch == 3 else 12):
            yield (np.full(6, row, np.float32),)


@pytest.mark.parametrize(("rows", "what"), [(8, "fewer"), (16, "more")])
def test_an_epoch_of_another_length_ends_a_replay(rows, what):
    position = DatasetPosition(ds.GeneratorDataset(Growing(rows), ["x"]).batch(4))
    position.prepare(6, None)
    with pytest.raises(ResumeError, match=f"an epoch has 3 batches, but epoch 1 has {what}"):
        position.dataset.create_tuple_iterator(num_epochs=EPOCHS)


def test_sizes_of_batches_are_asked_in_this_process():
    """Though what makes the batches runs in others."""
    options = {"per_batch_map": lambda x, info: (x,), "num_parallel_workers": 2, "python_multiprocessing": True}
    source = ds.NumpySlicesDataset({"x": samples(23)["x"]})
    assert python_code_here(source.batch(2, **options)) == []
    assert python_code_here(source.batch(lambda info: 2, **options)) == ["BatchDataset"]


@pytest.mark.parametrize("options", [{}, {"callback": print}])
def test_a_pipeline_that_waits_for_training_is_refused(options):
    waiting = ds.NumpySlicesDataset({"x": samples(23)["x"]}, shuffle=True).sync_wait("trained", 2, **options).batch(4)
    with pytest.raises(ResumeError, match=r'sync_wait\("trained"\): no checkpoint holds what training tells'):
        DatasetPosition(waiting)


# What must not change


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (lambda: crops(1), lambda: crops(2), r"MapDataset\(RandomCrop\)', 1\).*MapDataset\(RandomCrop\)', 2\)"),
        (
            lambda: maps(num_parallel_workers=1),
            lambda: maps(num_parallel_workers=2, python_multiprocessing=True),
            r"MapDataset\(doubled\)', 1\).*MapDataset\(doubled\)', 2\)",
        ),
        (lambda: augmented(3), lambda: augmented(4), r"seeds of ckptkit\.data\.Augmented.*\(3, 3\).*\(4, 4\)"),
    ],
)
def test_another_pipeline_is_named(before, after, message):
    state, _ = recorded_after(before, 2)
    with pytest.raises(ResumeError, match=message):
        DatasetPosition(after()).check(state)


def test_workers_that_do_not_matter_may_change():
    for before, after in [
        (pipeline, lambda: pipeline().rename(["x"], ["x"])),
        (lambda: maps(num_parallel_workers=1), lambda: maps(num_parallel_workers=2)),
        (lambda: augmented(3), lambda: augmented(3, num_parallel_workers=2)),
    ]:
        state, _ = recorded_after(before, 2)
        DatasetPosition(after()).check(state)


def test_workers_of_declared_code_may_change():
    state, expected = recorded_after(lambda: maps(num_parallel_workers=1), 4, augmentation="stateless")
    options = {"num_parallel_workers": 2, "python_multiprocessing": True}
    assert rest(resumed(lambda: maps(**options), 4, state, augmentation="stateless"), 4) == expected


def test_code_may_become_stateless_later(shown):
    state, expected = recorded_after(maps, 4)
    assert "skip node" not in shown()
    assert rest(resumed(maps, 4, state, augmentation="stateless"), 4) == expected
    assert shown().count("if MindSpore warns next of a skip node below a map node") == 1
    state, expected = recorded_after(maps, 4, augmentation="stateless")
    assert rest(resumed(maps, 4, state), 4) == expected


def test_another_word_than_stateless_is_refused():
    with pytest.raises(ValueError, match=r'augmentation must be None or "stateless", got "?\'?none'):
        DatasetPosition(pipeline(), augmentation="none")


# Random augmentation that resumes at once


class Source:
    def __len__(self):
        return 23

    def __getitem__(self, index):
        return index


def augmented(seed, **options):
    def drawn(sample, rng):
        return np.array([sample]), rng.random(2)

    return data.Augmented(Source(), drawn, seed=seed).dataset(["x", "z"], **options).batch(5)


def test_augmentation_depends_on_seed_epoch_index_only():
    for seed in (0, 3):
        rows = all_batches(augmented(seed), output_numpy=True)
        found = [(int(x[0]), tuple(z)) for batch in rows for x, z in zip(*batch, strict=True)]
        assert [index for index, _ in found[:23]] != [index for index, _ in found[23:46]]
        assert sorted(index for index, _ in found) == sorted([*range(23)] * EPOCHS)
        for place, (index, drawn) in enumerate(found):
            assert drawn == tuple(data.sample_rng(seed, place // 23, index).random(2))


def test_augmented_is_positioned_without_a_replay(shown):
    state, expected = recorded_after(lambda: augmented(3), 7)
    assert rest(resumed(lambda: augmented(3), 7, state), 7) == expected
    assert shown() == ""


def test_unshuffled_order_is_that_of_the_source():
    rows = all_batches(augmented(3, shuffle=False), output_numpy=True)
    assert [int(x[0]) for batch in rows for x in batch[0]] == [*range(23)] * EPOCHS
    drawn = [tuple(z) for batch in rows for z in batch[1]]
    assert drawn == [tuple(data.sample_rng(3, place // 23, place % 23).random(2)) for place in range(23 * EPOCHS)]


@pytest.mark.parametrize("option", ["sampler", "num_shards", "batch_sampler"])
def test_another_order_beside_augmented_is_refused(option):
    with pytest.raises(ValueError, match=f"{option} cannot be set: the EpochSampler gives the order"):
        data.Augmented(Source(), lambda sample, rng: sample, seed=1).dataset(["x"], **{option: None})


@pytest.mark.parametrize("arguments", [(0, 1), (5, -1)])
def test_impossible_samplers_are_refused(arguments):
    with pytest.raises(ValueError, match="num_samples must be at least 1 and seed not negative"):
        data.EpochSampler(*arguments)


# What is said meanwhile


def clock(step):
    times = iter(step * count for count in range(10_000))
    return lambda: next(times)


def test_replay_predicts_its_cost(shown):
    reads = iter(range(1000))
    assert replay(1000, lambda: next(reads), monotonic=clock(0.01)) == 999
    assert next(reads, None) is None
    assert "replaying the data up to batch 1000" in shown()
    assert "the replay of 980 more batches will take about 0:00:10" in shown()
    assert shown().count("\n") == 2


def test_a_slow_replay_is_foreseen_after_a_second(shown):
    replay(100, lambda: None, monotonic=clock(2.0))
    assert "the replay of 99 more batches will take about 0:03:18" in shown()


def test_order_of_skipped_epochs_is_not_computed(monkeypatch):
    state, expected = recorded_after(lambda: augmented(3), 12)
    asked = []
    iterate = data.EpochSampler.__iter__
    monkeypatch.setattr(data.EpochSampler, "__iter__", lambda self: asked.append(self.epoch) or iterate(self))
    assert rest(resumed(lambda: augmented(3), 12, state), 12) == expected
    assert asked == [2]


def numbered(columns, noise, info):
    return [column + info.get_epoch_num() for column in columns], noise


def test_code_receives_correct_epoch_number(shown):
    def make():
        source = data.Augmented(Source(), lambda sample, rng: (np.array([sample]), rng.random(2)), seed=3)
        return source.dataset(["x", "z"]).batch(5, per_batch_map=numbered, num_parallel_workers=1)

    for augmentation in (None, "stateless"):
        state, expected = recorded_after(make, 12)
        assert rest(resumed(make, 12, state, augmentation=augmentation), 12) == expected
    assert "replaying it instead" not in shown()


def test_epoch_dependent_pipeline_prevents_epoch_skip():
    """More than the sampler differs by epoch, here a shuffle buffer."""

    def make():
        return augmented(3).shuffle(4)

    for delivered in (4, 5, 6, 12):
        state, expected = recorded_after(make, delivered)
        assert rest(resumed(make, delivered, state), delivered) == expected
