"""The position of a pipeline: exactly the next batch, whatever it is made of; what differs is refused by name."""

import contextlib
import functools
import itertools
import random
import re

import mindspore.dataset as ds
import numpy as np
import pytest
from exactness.pipelines.files import write_files
from exactness.pipelines.zoo import KINDS
from mindspore.dataset import vision
from support.loaders import Rows
from support.training import UNSET_SEED, begin_process, pipeline, rng_digest, samples

from ckptkit import data
from ckptkit.errors import ResumeError
from ckptkit.mindspore.data.batch_digest import digest_of
from ckptkit.mindspore.data.pipeline_position import DatasetPosition
from ckptkit.mindspore.data.replay import replay

EPOCHS = 3


def doubled(x):
    return x * 2


def slices(**options):
    return ds.NumpySlicesDataset({"x": samples(23)["x"]}, shuffle=True, **options)


def maps(**options):
    return slices().map(doubled, ["x"], **options).batch(4)


BOTH = pytest.mark.parametrize("make", [pipeline, maps], ids=["fast", "replay"])


def crops(workers):
    pixels = np.random.default_rng(4).integers(0, 255, (23, 10, 10, 3), dtype=np.uint8)
    return ds.NumpySlicesDataset({"x": pixels}).map(vision.RandomCrop(6), ["x"], num_parallel_workers=workers).batch(4)


def prepared(dataset, delivered=0, state=None, **options):
    position = DatasetPosition(dataset, **options)
    if state is not None:
        position.check(state)
    position.prepare(delivered, state)
    return position


def digests_left(position, delivered=0, **options):
    """The digest of each batch that is left of all epochs."""
    iterator = position.dataset.create_tuple_iterator(num_epochs=EPOCHS, **options)
    position.iterator_made()
    return [digest_of(batch) for _ in range(EPOCHS - delivered // position.size) for batch in iterator]


def recorded_after(make, delivered, **options):
    """What a checkpoint holds of the data, and the digests of the batches after it."""
    begin_process()
    position = prepared(make(), **options)
    iterator = position.dataset.create_tuple_iterator(num_epochs=EPOCHS)
    position.iterator_made()
    batches = (digest_of(batch) for _ in range(EPOCHS) for batch in iterator)
    for _ in range(delivered):
        next(batches)
    state = position.state(delivered)
    expected = list(batches)
    begin_process()
    return state, expected


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("files")
    write_files(made)
    return made


def is_tried_here(name):
    """Loaders are those of `test_iterable`, and `exactness.pipelines` has all in fresh processes."""
    return "processes" not in name and name != "map-numpy-threads" and not name.startswith("loader")


@pytest.mark.parametrize("name", list(filter(is_tried_here, KINDS)))
def test_next_batches_are_those_of_the_uninterrupted_run(name, folder, shown):
    kind = KINDS[name]
    options = {"augmentation": "stateless" if kind.stateless else None}

    def make():
        return kind.build(folder)

    size = DatasetPosition(make()).size
    _, whole = recorded_after(make, 0, **options)
    assert whole[:size] != whole[size : 2 * size] or name == "generator-stream", "epochs that are alike prove nothing"
    for delivered, recovery in ((2, True), (size, False), (2 * size - 1, True)):
        state, expected = recorded_after(make, delivered, **options)
        begin_process(seed=None if kind.way == "fast" else 5)  # a sampler of shards keeps the seed of its making
        np.random.seed(77)
        random.seed(77)
        ds.config.set_fast_recovery(recovery)
        before = rng_digest()
        position = prepared(make(), delivered, state, **options)
        left = digests_left(position, delivered)
        assert ds.config.get_fast_recovery() == recovery
        assert position.dataset.get_init_step() == 0
        assert left == expected == whole[delivered:], delivered
        assert (rng_digest() == before) == (not kind.draws)
        assert bool(position.own_draws) == kind.draws
        position.leave()
    assert ("replaying the data" in shown()) == (kind.way != "fast")
    assert ("draws from the global generators" in shown()) == kind.draws
    assert ("replaying it instead" in shown()) == (name == "map-declared-wrongly")


@BOTH
def test_any_iterator_starts_at_next_batch(make):
    state, expected = recorded_after(make, 8)
    assert digests_left(prepared(make(), 8, state), 8, output_numpy=True, do_copy=True) == expected
    for options in ({"num_epochs": EPOCHS}, {}, {"num_epochs": -1}):
        iterator = prepared(make(), 8, state).dataset.create_dict_iterator(**options)
        assert digest_of(next(iterator)) == expected[0], options
    assert iterator.get_col_names() == [*next(iterator)]
    iterator.stop()


def test_checkpoint_without_digest_is_positioned(shown):
    state, expected = recorded_after(pipeline, 5)
    position = prepared(pipeline(), 5, state)
    assert position.state(5) == state, "of a save before the next batch"
    assert position.state(6)["probe"] is None, "a loop that reads ahead trained another one last"
    assert digests_left(prepared(pipeline(), 5, state | {"probe": None}), 5) == expected
    assert "replay" not in shown()


@BOTH
def test_another_batch_than_was_trained_last_is_refused(make, shown):
    state, _ = recorded_after(make, 5)
    position = prepared(make(), 5, state | {"probe": "0" * 32})
    random.seed(8)
    before = rng_digest()
    with pytest.raises(
        ResumeError, match=r"<- NumpySlicesDataset: batch 4, the last one that was trained, is different"
    ):
        digests_left(position, 5)
    assert ("replaying it instead" in shown()) == (make is pipeline)
    assert rng_digest() == before
    assert (position.dataset.get_init_step(), ds.config.get_fast_recovery()) == (0, True)


def test_later_iterators_begin_at_the_first_epoch():
    for make in (pipeline, lambda: augmented(3)):
        _, expected = recorded_after(make, 0)
        state, _ = recorded_after(make, 12)
        position = prepared(make(), 12, state)
        digests_left(position, 12)
        iterator = position.dataset.create_tuple_iterator(num_epochs=EPOCHS)
        assert [digest_of(batch) for _ in range(EPOCHS) for batch in iterator] == expected


def test_iterators_that_cannot_be_positioned_are_refused():
    state, _ = recorded_after(pipeline, 11)
    position = prepared(pipeline(), 11, state)
    with pytest.raises(ResumeError, match=r"num_epochs=1 are 11 batches, but 11 were delivered"):
        iter(position.dataset)
    pipeline().create_tuple_iterator(num_epochs=EPOCHS)
    with pytest.raises(ResumeError, match=r"no iterator was made of the dataset that was restored"):
        position.iterator_made()


def test_an_epoch_of_another_length_ends_a_replay():
    for rows, what in ((8, "fewer"), (16, "more")):
        source = Rows(12, 12, rows, 12)  # the first time to learn the size
        position = prepared(ds.GeneratorDataset(source, ["x"]).batch(4), 6)
        with pytest.raises(ResumeError, match=f"an epoch has 3 batches, but epoch 1 has {what}"):
            position.dataset.create_tuple_iterator(num_epochs=EPOCHS)


def test_who_lets_go_late_moves_no_other():
    dataset = maps()
    first, second = prepared(dataset), prepared(dataset)
    first.release()
    assert "create_tuple_iterator" in vars(dataset)
    second.release()
    assert "create_tuple_iterator" not in vars(dataset)


def test_fresh_start_draws_missing_seed(monkeypatch, shown):
    """Another one each time, never the one that means unset; it disturbs no generator, and reproduces the data."""
    begin_process(seed=9)
    assert prepared(pipeline()).seed == 9
    seeds = set()
    for _ in range(4):
        begin_process(seed=None)
        before = rng_digest()
        position = prepared(pipeline())
        assert position.seed == ds.config.get_seed()
        assert f"drew {position.seed} and recorded it in the run; ms.set_seed({position.seed})" in shown()
        assert rng_digest() == before
        seeds.add(position.seed)
    assert len(seeds) == 4
    given = digests_left(position)
    begin_process(seed=None)
    state = {**RECORDED, "seed": position.seed}
    assert digests_left(prepared(pipeline(), 0, state)) == given
    for drawn, seed in ((UNSET_SEED - 1, UNSET_SEED - 1), (UNSET_SEED, UNSET_SEED + 1)):
        begin_process(seed=None)
        monkeypatch.setattr("secrets.randbelow", lambda below, drawn=drawn: drawn)
        assert prepared(pipeline()).seed == seed


def test_seed_change_before_iterator_is_refused():
    position = prepared(pipeline(), 3)
    ds.config.set_seed(8)
    for make_iterator in (position.iterator_made, position.dataset.create_tuple_iterator):
        with pytest.raises(ResumeError, match=r"was 5 when the run was resumed and is 8 now"):
            make_iterator()


def test_leaving_brings_back_the_seed_from_before():
    """Also where one process started twice, and not where the user has set another one since."""
    begin_process(seed=None)
    position = prepared(pipeline())
    for since in (UNSET_SEED, 8):
        position.prepare(0, None)
        if since == 8:
            ds.config.set_seed(since)
        position.leave()
        assert ds.config.get_seed() == since


RECORDED = {
    **{"size": 11, "batch_size": 4, "columns": ("x", "y"), "workers": (), "carried_seeds": ()},
    **{"seed": 5, "probe": None, "generators": None},
}


def test_what_differs_is_named():
    for seed in (None, 5):
        begin_process(seed)
        position = DatasetPosition(pipeline())
        position.check(RECORDED)
    before = rng_digest()
    for recorded, message in (
        ({"size": 12}, r"batches per epoch \(.*\): the checkpoint has 12, this dataset has 11"),
        ({"batch_size": 5}, r"samples per batch: the checkpoint has 5, this dataset has 4"),
        ({"columns": ("y", "x")}, r"columns: the checkpoint has \('y', 'x'\), this dataset has \('x', 'y'\)"),
        ({"seed": 6}, r"the checkpoint has 6, this process set 5 \(use ms\.set_seed\(6\) or none\)"),
        ({"iterable": "list"}, "made with a list, but this training reads a MindSpore pipeline"),
    ):
        with pytest.raises(ResumeError, match=message):
            position.check(RECORDED | recorded)
    assert (rng_digest(), ds.config.get_seed(), position.dataset.get_init_step()) == (before, 5, 0)


def test_another_pipeline_is_named():
    own = {"num_parallel_workers": 2, "python_multiprocessing": True}
    one = functools.partial(maps, num_parallel_workers=1)
    mapped = r"MapDataset\(doubled\)', 1\).*MapDataset\(doubled\)', 2\)"
    for before, after, message in (
        (lambda: crops(1), lambda: crops(2), r"MapDataset\(RandomCrop\)', 1\).*MapDataset\(RandomCrop\)', 2\)"),
        (one, lambda: maps(**own), mapped),
        (lambda: augmented(3), lambda: augmented(4), r"seeds of ckptkit\.data\.Augmented.*\(3, 3\).*\(4, 4\)"),
        (pipeline, lambda: pipeline().rename(["x"], ["x"]), None),
        (one, lambda: maps(num_parallel_workers=2), None),
        (lambda: augmented(3), lambda: augmented(3, num_parallel_workers=2), None),
    ):
        state = prepared(before()).state(0)
        with pytest.raises(ResumeError, match=message) if message else contextlib.nullcontext():
            DatasetPosition(after()).check(state)
    state, expected = recorded_after(one, 4, augmentation="stateless")
    assert digests_left(prepared(maps(**own), 4, state, augmentation="stateless"), 4) == expected


def test_code_may_become_stateless_later(shown):
    for before, after in ((None, "stateless"), ("stateless", None)):
        state, expected = recorded_after(maps, 4, augmentation=before)
        assert digests_left(prepared(maps(), 4, state, augmentation=after), 4) == expected
        assert shown().count("if MindSpore warns next of a skip node below a map node") == 1


def test_what_cannot_be_positioned_is_refused():
    with pytest.raises(ResumeError, match=r"was not prepared"):
        DatasetPosition(pipeline()).state(0)
    with pytest.raises(ResumeError, match=r"no batch"):
        DatasetPosition(ds.NumpySlicesDataset(samples(3), shuffle=True).batch(4, drop_remainder=True))
    with pytest.raises(ValueError, match=r'augmentation must be None or "stateless", got "?\'?none'):
        DatasetPosition(pipeline(), augmentation="none")
    for options in ({}, {"callback": print}):
        with pytest.raises(ResumeError, match=r'sync_wait\("trained"\): no checkpoint holds what training tells'):
            DatasetPosition(slices().sync_wait("trained", 2, **options).batch(4))
    ds.config.set_debug_mode(True)
    with pytest.raises(ResumeError, match=r"set_debug_mode\(False\)"):
        DatasetPosition(pipeline())


def augmented(seed, **options):
    def drawn(sample, rng):
        return np.array([sample]), rng.random(2)

    return data.Augmented(range(23), drawn, seed=seed).dataset(["x", "z"], **options).batch(5)


def test_augmentation_depends_on_seed_epoch_index_only():
    for seed, options in ((0, {}), (3, {}), (3, {"shuffle": False})):
        iterator = augmented(seed, **options).create_tuple_iterator(num_epochs=EPOCHS, output_numpy=True)
        rows = [(int(x[0]), tuple(z)) for _ in range(EPOCHS) for batch in iterator for x, z in zip(*batch, strict=True)]
        epochs = [[index for index, _ in rows[begin : begin + 23]] for begin in (0, 23, 46)]
        assert all(sorted(epoch) == [*range(23)] for epoch in epochs)
        assert (epochs[0] != epochs[1]) == (not options)
        assert (epochs[0] == [*range(23)]) == bool(options)
        for place, (index, drawn) in enumerate(rows):
            assert drawn == tuple(data.sample_rng(seed, place // 23, index).random(2))


def test_order_of_skipped_epochs_is_not_computed(monkeypatch):
    state, expected = recorded_after(lambda: augmented(3), 12)
    asked = []
    iterate = data.EpochSampler.__iter__
    monkeypatch.setattr(data.EpochSampler, "__iter__", lambda self: asked.append(self.epoch) or iterate(self))
    assert digests_left(prepared(augmented(3), 12, state), 12) == expected
    assert asked == [2]


def numbered(columns, noise, info):
    return [column + info.get_epoch_num() for column in columns], noise


def test_epoch_dependent_pipeline_prevents_epoch_skip(shown):
    """More than the sampler differs by epoch: a shuffle buffer, or code that is told the epoch."""
    for make, options in (
        (lambda: augmented(3).shuffle(4), {}),
        (lambda: augmented(3).batch(1, per_batch_map=numbered, num_parallel_workers=1), {}),
        (lambda: augmented(3).batch(1, per_batch_map=numbered, num_parallel_workers=1), {"augmentation": "stateless"}),
    ):
        for delivered in (4, 5, 12):
            state, expected = recorded_after(make, delivered, **options)
            assert digests_left(prepared(make(), delivered, state, **options), delivered) == expected
    assert "replaying it instead" not in shown()


def test_replay_predicts_its_cost(shown):
    for batches, seconds, said in (
        (1000, 0.01, "980 more batches will take about 0:00:10"),
        (100, 2.0, "99 .* 0:03:18"),
    ):
        reads, times = iter(range(batches)), itertools.count(0, seconds)
        assert (
            replay(batches, lambda reads=reads: next(reads), monotonic=lambda times=times: next(times)) == batches - 1
        )
        assert next(reads, None) is None
        assert f"replaying the data up to batch {batches}" in shown()
        assert re.search(f"the replay of {said}", shown())
