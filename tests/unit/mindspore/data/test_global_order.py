"""One order of samples for all ranks: any world derives its part, from any position, and goes on in another."""

from __future__ import annotations

import re
from dataclasses import asdict

import mindspore.dataset as ds
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ckptkit as ck
from ckptkit.errors import ResumeError
from ckptkit.mindspore.data.iterable import IterablePosition
from ckptkit.mindspore.data.pipeline_position import DatasetPosition
from ckptkit.mindspore.data.sampling import GlobalOrder

SAMPLES = 70  # 4 global batches of 16, 6 samples left out per epoch
PER_EPOCH = 64
ORDER = {"global_batch": 16, "micro_batch": 2, "seed": 5}


class Ids:
    """Sample i is i."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return np.int64(index)


def augment(sample, rng):
    return (sample, np.float32(rng.random()))


def pipeline(rank, world_size, batch=2, **changed):
    order = ck.data.GlobalSampler(SAMPLES, rank=rank, world_size=world_size, **{**ORDER, **changed})
    return ck.data.Augmented(Ids(), augment, seed=1).dataset(["id", "noise"], ranks=order).batch(batch)


def read(dataset, epochs):
    """Per micro-step the ids, and their noise."""
    rows = dataset.create_tuple_iterator(num_epochs=epochs, output_numpy=True)
    return [(ids.tolist(), noise.tolist()) for _ in range(epochs) for ids, noise in rows]


def dealt(per_rank):
    """All samples in the order of the micro-steps, by rank: the global order."""
    return [one for step in zip(*per_rank, strict=True) for ids, noise in step for one in zip(ids, noise, strict=True)]


def trained(world_size, epochs=3):
    return dealt([read(pipeline(rank, world_size), epochs) for rank in range(world_size)])


def test_every_world_has_same_global_batches():
    alone = trained(1)
    assert len(alone) == 3 * PER_EPOCH
    assert trained(2) == alone
    assert trained(4) == alone
    for epoch in range(3):
        ids = [index for index, _ in alone[epoch * PER_EPOCH : (epoch + 1) * PER_EPOCH]]
        assert len(set(ids)) == PER_EPOCH
        assert ids != sorted(ids)
    assert alone[:PER_EPOCH] != alone[PER_EPOCH : 2 * PER_EPOCH]


def test_unshuffled_order_is_that_of_the_source():
    sampler = ck.data.GlobalSampler(SAMPLES, rank=1, world_size=2, shuffle=False, **ORDER)
    assert list(sampler)[:6] == [2, 3, 6, 7, 10, 11]
    assert list(sampler)[:2] == [SAMPLES + 2, SAMPLES + 3]


def test_the_size_is_that_of_one_rank():
    assert [pipeline(0, world).get_dataset_size() for world in (1, 2, 4, 8)] == [32, 16, 8, 4]


@pytest.mark.parametrize("samples", [16, 40, 64, 96, 64 + 24])
@pytest.mark.parametrize(("ranks", "onto"), [(2, 1), (1, 2), (2, 4), (4, 2), (4, 1)])
def test_another_world_goes_on_with_the_next_sample(samples, ranks, onto, caplog):
    before = samples // (2 * ranks)
    left = []
    for rank in range(onto):
        old = DatasetPosition(pipeline(rank % ranks, ranks), seed=9)
        old.prepare(0, None)
        recorded = old.state(before)
        new = pipeline(rank, onto)
        position = DatasetPosition(new, seed=9)
        recorded = position.folded(recorded, ranks, onto)
        position.check(recorded)
        delivered = before * ranks // onto
        position.prepare(delivered, recorded)
        rows = new.create_tuple_iterator(num_epochs=2, output_numpy=True)
        position.iterator_made()
        epochs = range(delivered // position.size, 2)
        left.append([(ids.tolist(), noise.tolist()) for _ in epochs for ids, noise in rows])
        position.leave()
        old.leave()
    assert dealt(left) == trained(1, 2)[samples:]
    assert "replay" not in caplog.text


@given(
    st.integers(1, 4).flatmap(lambda p: st.tuples(st.just(2**p), st.integers(0, p), st.integers(0, p))),
    st.integers(1, 5),
    st.integers(0, 40),
    st.integers(0, 3),
)
def test_any_world_deals_the_same_global_batches(worlds, micro_batch, more, epoch):
    in_all, one, other = worlds
    order = GlobalOrder(in_all * micro_batch + more, in_all * micro_batch, micro_batch, seed=3)

    def batches(world_size):
        parts = np.stack([order.numbers(epoch, rank, world_size) for rank in range(world_size)], axis=1)
        return parts.reshape(-1, order.global_batch)

    np.testing.assert_array_equal(batches(2**one), batches(2**other))
    found = batches(2**one).reshape(-1) - epoch * order.num_samples
    assert len(set(found.tolist())) == order.per_epoch
    assert set(found.tolist()) <= set(range(order.num_samples))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"rank": 0, "world_size": 3}, "8 micro-batches of 2, which 3 ranks cannot share evenly; 1, 2, 4, 8 ranks can"),
        ({"rank": 2, "world_size": 2}, "rank must be one of the 2 ranks, got 2"),
        ({"rank": 0}, "both rank and world_size"),
        (
            {"rank": 0, "world_size": 1, "micro_batch": 3},
            "global batch of 16 cannot be divided into micro-batches of 3",
        ),
        ({"rank": 0, "world_size": 1, "global_batch": 72}, "70 samples are too few for a global batch of 72"),
        ({"rank": 0, "world_size": 1, "seed": -1}, "seed not negative"),
        ({"rank": 0, "world_size": 1, "micro_batch": 2.0}, "must be ints"),
    ],
)
@pytest.mark.parametrize("kind", [ck.data.GlobalSampler, ck.data.GlobalIndices])
def test_what_does_not_divide_is_refused(kind, changed, message):
    with pytest.raises(ValueError, match=message):
        kind(SAMPLES, **{**ORDER, **changed})


def test_process_without_ranks_is_world_of_one():
    sampler = ck.data.GlobalSampler(SAMPLES, **ORDER)
    assert (sampler.rank, sampler.world_size) == (0, 1)


def test_pipeline_with_other_sample_count_is_refused():
    source = ck.data.Augmented(Ids(), augment, seed=1)
    order = ck.data.GlobalSampler(64, rank=0, world_size=1, **ORDER)
    with pytest.raises(ValueError, match="GlobalSampler of 64 samples, the source has 70"):
        source.dataset(["id", "noise"], ranks=order)
    with pytest.raises(ValueError, match="give shuffle=False to the GlobalSampler"):
        source.dataset(["id", "noise"], ranks=order, shuffle=False)
    with pytest.raises(ValueError, match=re.escape("ranks=ckptkit.data.GlobalSampler(...)")):
        source.dataset(["id", "noise"], num_shards=2, shard_id=0)


def recorded_by(dataset):
    position = DatasetPosition(dataset, seed=9)
    position.prepare(0, None)
    state = position.state(4)
    position.leave()
    return state


def test_only_pure_global_order_continues_in_other_world():
    state = recorded_by(pipeline(0, 2))
    reordered = (pipeline(0, 1).shuffle(4), pipeline(0, 1).repeat(2), pipeline(0, 1).skip(1))
    plain = ck.data.Augmented(Ids(), augment, seed=1).dataset(["id", "noise"]).batch(2)
    for other in (*reordered, plain):
        with pytest.raises(
            ResumeError, match=r"does not come from a GlobalSampler alone.*1 ranks continue where 2 ranks stopped"
        ):
            DatasetPosition(other, seed=9).folded(state, 2, 1)
    with pytest.raises(
        ResumeError, match=r"in the checkpoint does not come from a GlobalSampler.*continue with 2 ranks"
    ):
        DatasetPosition(pipeline(0, 1), seed=9).folded(recorded_by(plain), 2, 1)


def test_other_batches_epochs_and_orders_are_refused():
    state = recorded_by(pipeline(0, 2))
    with pytest.raises(ResumeError, match="micro_batch=2 of the GlobalSampler, but batches of 4"):
        DatasetPosition(pipeline(0, 1, batch=4), seed=9).folded(state, 2, 1)
    with pytest.raises(ResumeError, match="micro_batch=4 of the GlobalSampler, but batches of 2"):
        DatasetPosition(pipeline(0, 1, batch=4, micro_batch=4), seed=9).folded(state, 2, 1)
    with pytest.raises(ResumeError, match="an epoch was 2 ranks x 16 batches = 32, and is 1 x 16 = 16 now"):
        DatasetPosition(pipeline(0, 2), seed=9).folded(state, 2, 1)
    for changed in ({"seed": 6}, {"global_batch": 8}, {"shuffle": False}):
        position = DatasetPosition(pipeline(0, 1, **changed), seed=9)
        state_here = {**state, "size": position.size * 1 // 2}
        with pytest.raises(ResumeError, match=r"what the ckptkit.data.GlobalSampler was made with"):
            position.check(position.folded(state_here, 2, 1))


def test_new_ranks_may_have_other_dataset_seeds():
    """Ranks that were there before have to keep their dataset seed."""
    state = recorded_by(pipeline(0, 2))  # with the seed 9
    grown = DatasetPosition(pipeline(2, 4), seed=11)
    grown.check(grown.folded(state, 2, 4))
    shrunk = DatasetPosition(pipeline(0, 1), seed=11)
    with pytest.raises(ResumeError, match="the dataset seed: the checkpoint has 9, this process set 11"):
        shrunk.check(shrunk.folded(state, 2, 1))


def test_same_world_compares_global_order():
    """On the same world the recorded order is compared, and the batches are probed as well."""
    dataset = pipeline(1, 2)
    state = recorded_by(dataset)
    assert state["global_order"] == asdict(GlobalOrder(SAMPLES, shuffle=True, **ORDER))
    DatasetPosition(pipeline(1, 2), seed=9).check(state)
    with pytest.raises(ResumeError, match="GlobalSampler"):
        DatasetPosition(pipeline(1, 2, seed=6), seed=9).check(state)


# In a loop of one's own


def indices(rank, world_size, **changed):
    return ck.data.GlobalIndices(SAMPLES, rank=rank, world_size=world_size, **{**ORDER, **changed})


def numbers_of(left, world_size):
    per_rank = [[numbers.tolist() for numbers in one] for one in left]
    assert len(per_rank) == world_size
    return [one for step in zip(*per_rank, strict=True) for part in step for one in part]


def whole(world_size, epochs=2):
    return numbers_of(
        [
            [batch for _ in range(epochs) for batch in one]
            for one in (indices(r, world_size) for r in range(world_size))
        ],
        world_size,
    )


@pytest.mark.parametrize("samples", [0, 16, 40, 64, 96, 128])
@pytest.mark.parametrize(("ranks", "onto"), [(2, 1), (1, 2), (2, 4), (4, 2), (2, 2)])
@pytest.mark.parametrize("ended", [False, True])
def test_indices_go_on_in_another_world(samples, ranks, onto, ended):
    """``ended``: the loop has noticed that the epoch is over, or was saved right after its last batch."""
    left = []
    for rank in range(onto):
        old = IterablePosition(indices(rank % ranks, ranks))
        old.prepare(0, None)
        before = samples // (2 * ranks)
        batches = old.batches(1 if samples <= PER_EPOCH else 2)
        for _ in range(before):
            next(batches)
        if ended and samples in (PER_EPOCH, 2 * PER_EPOCH):
            assert next(batches, None) is None
        recorded = old.state(before)
        position = IterablePosition(indices(rank, onto))
        recorded = position.folded(recorded, ranks, onto)
        position.check(recorded)
        delivered = before * ranks // onto
        assert position.placed(recorded, delivered) in (divmod(delivered, len(indices(0, onto))), recorded["place"])
        position.prepare(delivered, recorded)
        left.append([batch for _, batch in position.batches(2)])
    assert numbers_of(left, onto) == whole(1)[samples:]


def test_what_else_is_iterated_stays_in_its_world():
    old = IterablePosition([1, 2, 3, 4])
    old.prepare(0, None)
    with pytest.raises(
        ResumeError, match="nothing guarantees that 1 ranks continue in the data of list where 2 ranks stopped"
    ):
        IterablePosition([1, 2, 3, 4]).folded(old.state(0), 2, 1)
    mine = IterablePosition(indices(0, 2))
    mine.prepare(0, None)
    next(mine.batches(1))
    with pytest.raises(ResumeError, match="of 2 ranks are not whole numbers for 4"):
        IterablePosition(indices(0, 4)).folded(mine.state(1), 2, 4)
    with pytest.raises(ResumeError, match="the order of the samples was"):
        IterablePosition(indices(0, 1, seed=6)).folded(mine.state(1), 2, 1)


def test_indices_not_begun_go_on_elsewhere():
    """Of a checkpoint that was taken before the loop there is no state yet."""
    old = IterablePosition(indices(0, 2))
    old.prepare(0, None)
    position = IterablePosition(indices(0, 1))
    folded = position.folded(old.state(0), 2, 1)
    assert (folded["state"], folded["place"], folded["size"]) == (None, (0, 0), len(indices(0, 1)))


def test_other_order_or_partial_micro_step_is_refused():
    state = {"order": asdict(indices(0, 1).order), "epoch": 0, "samples": 6}
    with pytest.raises(
        ValueError, match="6 samples are not a whole number of micro-steps of 2 ranks with micro-batches of 2; 1 ranks"
    ):
        indices(0, 2).load_state_dict(state)
    with pytest.raises(ValueError, match="the order of the samples was"):
        indices(0, 1, seed=6).load_state_dict(state)


def test_a_source_of_ones_own_takes_the_sampler():
    class Numbered:
        def __len__(self):
            return SAMPLES

        def __getitem__(self, number):
            epoch, index = divmod(int(number), SAMPLES)
            return np.int64(epoch), np.int64(index)

    sampler = ck.data.GlobalSampler(SAMPLES, rank=0, world_size=2, **ORDER)
    dataset = ds.GeneratorDataset(Numbered(), ["epoch", "id"], sampler=sampler).batch(2)
    rows = list(dataset.create_tuple_iterator(num_epochs=1, output_numpy=True))
    assert len(rows) == 16
    assert rows[0][1].tolist() == list(iter(ck.data.GlobalSampler(SAMPLES, rank=0, world_size=2, **ORDER)))[:2]
