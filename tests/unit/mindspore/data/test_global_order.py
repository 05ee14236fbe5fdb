"""One order of samples for all ranks: any world derives its part, from any position, and goes on in another."""

import re
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptkit.data import Augmented, EpochSampler, GlobalIndices, GlobalSampler, sample_rng
from ckptkit.errors import ResumeError
from ckptkit.mindspore.data.iterable import IterablePosition
from ckptkit.mindspore.data.pipeline_position import DatasetPosition
from ckptkit.mindspore.data.sampling import GlobalOrder, epoch_order

SAMPLES = 70  # 4 global batches of 16, 6 samples left out per epoch
PER_EPOCH = 64
ORDER = {"global_batch": 16, "micro_batch": 2, "seed": 5}
WORLDS = [(2, 1), (1, 2), (2, 4), (4, 2), (4, 1), (2, 2)]


anything = st.integers(min_value=0, max_value=2**200)


@given(st.lists(st.tuples(anything, anything, anything), unique=True, min_size=2, max_size=20))
def test_distinct_numbers_give_distinct_streams(triples):
    triples = {(0, 1, 2**32), (0, 2**32, 1), (1, 12, 3), (1, 1, 23), (11, 2, 3), *triples}
    assert len({sample_rng(*triple).bytes(16) for triple in triples}) == len(triples)


def test_streams_are_those_of_stored_runs():
    for seed in (1, 2):
        np.random.seed(seed)
        raw = sample_rng(np.int64(7), np.uint8(2), np.int32(11)).bit_generator.random_raw(2).tolist()
        assert raw == [15989104381840726999, 7078718186923323812]
        assert epoch_order(8, 7, 2).tolist() == [0, 2, 4, 6, 5, 7, 3, 1]


def test_numbers_that_make_no_order_are_refused():
    world = {"rank": 0, "world_size": 1}
    for changed, message in (
        ({**world, "world_size": 3}, "8 micro-batches of 2, which 3 ranks cannot share evenly; 1, 2, 4, 8 ranks can"),
        ({"rank": 2, "world_size": 2}, "rank must be one of the 2 ranks, got 2"),
        ({"rank": 0}, "both rank and world_size"),
        ({**world, "micro_batch": 3}, "global batch of 16 cannot be divided into micro-batches of 3"),
        ({**world, "global_batch": 72}, "70 samples are too few for a global batch of 72"),
        ({**world, "seed": -1}, "seed not negative"),
        ({**world, "micro_batch": 2.0}, "must be ints"),
    ):
        for kind in (GlobalSampler, GlobalIndices):
            with pytest.raises(ValueError, match=message):
                kind(SAMPLES, **{**ORDER, **changed})
    alone = GlobalSampler(SAMPLES, **ORDER)
    assert (alone.rank, alone.world_size) == (0, 1)
    for wrong in ((-1, 0, 0), (0, -1, 0), (0, 0, -1)):
        with pytest.raises(ValueError, match="must not be negative"):
            sample_rng(*wrong)
    with pytest.raises(TypeError):
        sample_rng(0, 0, 1.0)
    for wrong in ((0, 1), (5, -1)):
        with pytest.raises(ValueError, match="num_samples must be at least 1 and seed not negative"):
            EpochSampler(*wrong)


def test_samplers_give_whole_epochs():
    sampler = GlobalSampler(SAMPLES, rank=1, world_size=2, shuffle=False, **ORDER)
    assert list(sampler)[:6] == [2, 3, 6, 7, 10, 11]
    assert list(sampler)[:2] == [SAMPLES + 2, SAMPLES + 3]


AUGMENTED = Augmented(np.arange(SAMPLES), lambda sample, rng: (sample, np.float32(rng.random())), seed=1)


def pipeline(rank, world_size, batch=2, **changed):
    order = GlobalSampler(SAMPLES, rank=rank, world_size=world_size, **{**ORDER, **changed})
    return AUGMENTED.dataset(["id", "noise"], ranks=order).batch(batch)


def dealt(per_rank):
    """All samples in the order of the micro-steps, by rank: the global order."""
    return [row for step in zip(*per_rank, strict=True) for ids, noise in step for row in zip(ids, noise, strict=True)]


def read(iterator, epochs):
    return [(ids.tolist(), noise.tolist()) for _ in range(epochs) for ids, noise in iterator]


def trained(world_size, epochs):
    made = [pipeline(rank, world_size) for rank in range(world_size)]
    return dealt([read(one.create_tuple_iterator(num_epochs=epochs, output_numpy=True), epochs) for one in made])


def recorded_by(dataset, delivered=4):
    position = DatasetPosition(dataset, seed=9)
    position.prepare(0, None)
    state = position.state(delivered)
    position.leave()
    return state


@pytest.mark.parametrize(("ranks", "onto"), WORLDS)
def test_another_world_goes_on_with_the_next_sample(ranks, onto, caplog):
    expected = trained(1, 2)
    assert trained(ranks, 2) == expected
    ids = [index for index, _ in expected]
    assert len({*ids[:PER_EPOCH]}) == PER_EPOCH
    assert ids[:PER_EPOCH] != ids[PER_EPOCH:] != sorted(ids[PER_EPOCH:])
    for samples in (16, 40, 64, 64 + 24):
        before, left = samples // (2 * ranks), []
        for rank in range(onto):
            made = pipeline(rank, onto)
            position = DatasetPosition(made, seed=9)
            recorded = recorded_by(pipeline(rank % ranks, ranks), before)
            recorded = position.folded(recorded, ranks, onto)
            position.check(recorded)
            delivered = before * ranks // onto
            position.prepare(delivered, recorded)
            rows = made.create_tuple_iterator(num_epochs=2, output_numpy=True)
            position.iterator_made()
            left.append(read(rows, 2 - delivered // position.size))
            position.leave()
        assert dealt(left) == expected[samples:], samples
    assert "replay" not in caplog.text


def test_other_orders_beside_augmented_are_refused():
    order = GlobalSampler(64, rank=0, world_size=1, **ORDER)
    for options, message in (
        ({"ranks": order}, "GlobalSampler of 64 samples, the source has 70"),
        ({"ranks": order, "shuffle": False}, "give shuffle=False to the GlobalSampler"),
        ({"num_shards": 2, "shard_id": 0}, re.escape("ranks=ckptkit.data.GlobalSampler(...)")),
        *(({name: None}, f"{name} cannot be set: the EpochSampler") for name in ("sampler", "batch_sampler")),
    ):
        with pytest.raises(ValueError, match=message):
            AUGMENTED.dataset(["id", "noise"], **options)


def test_what_another_world_cannot_continue_is_refused():
    state = recorded_by(pipeline(0, 2))
    plain = AUGMENTED.dataset(["id", "noise"]).batch(2)
    alone = r"does not come from a GlobalSampler alone.*1 ranks continue where 2 ranks stopped"
    for other, recorded, message in (
        *((other, state, alone) for other in (pipeline(0, 1).shuffle(4), pipeline(0, 1).repeat(2))),
        *((other, state, alone) for other in (pipeline(0, 1).skip(1), plain)),
        (pipeline(0, 1), recorded_by(plain), r"the checkpoint does not come from a GlobalSampler.*continue with 2"),
        (pipeline(0, 1, batch=4), state, "micro_batch=2 of the GlobalSampler, but batches of 4"),
        (pipeline(0, 1, batch=4, micro_batch=4), state, "micro_batch=4 of the GlobalSampler, but batches of 2"),
        (pipeline(0, 2), state, "an epoch was 2 ranks x 16 batches = 32, and is 1 x 16 = 16 now"),
    ):
        with pytest.raises(ResumeError, match=message):
            DatasetPosition(other, seed=9).folded(recorded, 2, 1)
    for changed in ({"seed": 6}, {"global_batch": 8}, {"shuffle": False}):
        position = DatasetPosition(pipeline(0, 1, **changed), seed=9)
        with pytest.raises(ResumeError, match=r"what the ckptkit.data.GlobalSampler was made with"):
            position.check(position.folded({**state, "size": position.size // 2}, 2, 1))


def test_new_ranks_may_have_other_dataset_seeds():
    """Ranks that were there before have to keep their dataset seed, and all of them their order."""
    state = recorded_by(pipeline(0, 2))  # with the seed 9
    grown = DatasetPosition(pipeline(2, 4), seed=11)
    grown.check(grown.folded(state, 2, 4))
    shrunk = DatasetPosition(pipeline(0, 1), seed=11)
    with pytest.raises(ResumeError, match="the dataset seed: the checkpoint has 9, this process set 11"):
        shrunk.check(shrunk.folded(state, 2, 1))
    assert state["global_order"] == asdict(GlobalOrder(SAMPLES, shuffle=True, **ORDER))
    DatasetPosition(pipeline(1, 2), seed=9).check(state)
    with pytest.raises(ResumeError, match="GlobalSampler"):
        DatasetPosition(pipeline(1, 2, seed=6), seed=9).check(state)


# In a loop of one's own


def indices(rank, world_size, **changed):
    return GlobalIndices(SAMPLES, rank=rank, world_size=world_size, **{**ORDER, **changed})


def in_order(per_rank):
    return [int(number) for step in zip(*per_rank, strict=True) for part in step for number in part]


@pytest.mark.parametrize(("ranks", "onto"), WORLDS)
def test_indices_go_on_in_another_world(ranks, onto):
    """Also where the loop has noticed that the epoch is over, or was saved right after its last batch, or not begun."""
    alone = indices(0, 1)
    whole = in_order([[batch for _ in range(2) for batch in alone]])
    for samples, ended in [*((at, False) for at in (0, 16, 40, 64, 96, 128)), (64, True), (128, True)]:
        left = []
        for rank in range(onto):
            old = IterablePosition(indices(rank % ranks, ranks))
            old.prepare(0, None)
            before = samples // (2 * ranks)
            batches = old.batches(1 if samples <= PER_EPOCH else 2)
            for _ in range(before):
                next(batches)
            if ended:
                assert next(batches, None) is None
            position = IterablePosition(indices(rank, onto))
            recorded = position.folded(old.state(before), ranks, onto)
            position.check(recorded)
            delivered = before * ranks // onto
            position.prepare(delivered, recorded)
            left.append([batch for _, batch in position.batches(2)])
        assert in_order(left) == whole[samples:], (samples, ended)


def test_indices_that_another_world_cannot_continue_are_refused():
    old = IterablePosition([1, 2, 3, 4])
    old.prepare(0, None)
    with pytest.raises(ResumeError, match="1 ranks continue in the data of list where 2 ranks stopped"):
        IterablePosition([1, 2, 3, 4]).folded(old.state(0), 2, 1)
    mine = IterablePosition(indices(0, 2))
    mine.prepare(0, None)
    next(mine.batches(1))
    with pytest.raises(ResumeError, match="of 2 ranks are not whole numbers for 4"):
        IterablePosition(indices(0, 4)).folded(mine.state(1), 2, 4)
    with pytest.raises(ResumeError, match="the order of the samples was"):
        IterablePosition(indices(0, 1, seed=6)).folded(mine.state(1), 2, 1)
    state = {"order": asdict(indices(0, 1).order), "epoch": 0, "samples": 6}
    message = "6 samples are not a whole number of micro-steps of 2 ranks with micro-batches of 2; 1 ranks"
    with pytest.raises(ValueError, match=message):
        indices(0, 2).load_state_dict(state)
    with pytest.raises(ValueError, match="the order of the samples was"):
        indices(0, 1, seed=6).load_state_dict(state)
