"""``elastic=True``: a checkpoint of N ranks goes on with M, its sums and its order of samples kept, or is refused.

The ranks of both worlds are objects of this process: their contents are made of captures, one per rank.
"""

import types
from dataclasses import dataclass, replace

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops
from support.memory import contents_of
from support.options import grouped
from support.training import Quiet, samples, sums_prefix, tensors

import ckptkit as ck
from ckptkit.checkpoint.open import open_checkpoint
from ckptkit.checkpoint.read import load
from ckptkit.core.process_group import Alone
from ckptkit.errors import ResumeError
from ckptkit.mindspore.state.manager import StateManager
from ckptkit.run.index import Index
from ckptkit.storage import LocalStorage

ACCUM = sums_prefix()
DIVISOR = f"{ACCUM}divisor"


def train_cell(k, network=Quiet):
    network = network()
    for weight in network.get_parameters():
        weight.set_data(ops.ones_like(weight) * 0.1)  # the same in every rank
    optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)
    return ck.AccumulationTrainCell(network, optimizer, k).set_train()


def micro_batch(number):
    return [*map(ms.Tensor, samples(4, seed=number).values())]


class OfRank(StateManager):
    world = Alone()


def manager(k, rank=0, size=1, cell=None, **options):
    state = OfRank(train_cell(k) if cell is None else cell, **grouped(**{"elastic": True, **options}))
    state.world = Alone(rank, size)
    return state


def stepped(state, micro_steps):
    """Micro-step t of rank r of N sees micro-batch t*N + r, as with a `GlobalSampler`."""
    for step in micro_steps:
        state.cell(*micro_batch(step * state.world.size + state.world.rank))
    return state


@dataclass
class Checkpoint:
    ranks: list

    @classmethod
    def of(cls, states):
        made = cls([])
        for rank, state in enumerate(states):
            one = contents_of(state.capture(), "a000001-c0000000000-m0001")
            made.ranks.append(replace(one, rank=rank, world_size=len(states), of_rank=lambda q: made.ranks[q]))
        return made

    def for_rank(self, rank):
        return self.ranks[rank % len(self.ranks)]

    def sums(self):
        """Sum of the ranks' accumulators by name, in double."""
        names = [name for name, one in self.ranks[0].entries.items() if one.role == "accumulators"]
        return {name: np.sum([np.float64(one.tensors[name]) for one in self.ranks], axis=0) for name in names}


def saved(ranks, k, micro_steps, **options):
    """In the middle of the first cycle, where no rank has anything from another yet."""
    return Checkpoint.of([stepped(manager(k, rank, ranks, **options), range(micro_steps)) for rank in range(ranks)])


def resumed(checkpoint, onto, k, **options):
    states = [manager(k, rank, onto, **options) for rank in range(onto)]
    for rank, state in enumerate(states):
        state.apply(checkpoint.for_rank(rank))
    return states


def accumulators(state):
    return {one.name: one.asnumpy().copy() for one in state.cell.accumulators}


def assert_sums(states, expected, tolerance=1e-6):
    for name, whole in expected.items():
        found = np.sum([np.float64(accumulators(state)[name]) for state in states], axis=0)
        np.testing.assert_allclose(found, whole, rtol=tolerance, atol=tolerance, err_msg=name)


def test_the_sum_over_ranks_is_kept(caplog):
    """To every bit where it is folded by a power of two; the divisor always. What is not exact is named."""
    for ranks, onto, k, micro_steps in [(2, 1, 2, 1), (1, 4, 8, 4), (4, 1, 4, 3), (2, 3, 6, 3)]:
        checkpoint = saved(ranks, k, micro_steps)
        states = resumed(checkpoint, onto, k * ranks // onto)
        assert_sums(states, checkpoint.sums(), 1e-5 if 3 in {ranks, onto} else 1e-6)
        stored = [one.tensors for one in checkpoint.ranks]
        for state in states:
            found, counters = accumulators(state), state.cell.counters
            assert found[DIVISOR] == counters.micro_step == micro_steps * ranks // onto
            assert counters.accumulation_steps == k * ranks // onto
            if ranks == 1:
                assert all(np.array_equal(sums * onto, stored[0][name]) for name, sums in found.items())
            if (ranks, onto) == (2, 1):
                assert all(np.array_equal(sums, stored[0][name] + stored[1][name]) for name, sums in found.items())

    said = next(text for text in caplog.messages if "made by 2 ranks and continues with 1" in text)
    for words in (
        "accumulation steps 2 -> 4, micro-step 1 -> 2, batches 1 -> 2",
        "equal up to floating-point order and rounding, and so are the accumulators",
        "BatchNorm statistics and random state, comes from rank 0 here",
        "and the data, which the loop positions itself",
    ):
        assert words in said


class WithBuffer(Quiet):
    def __init__(self):
        super().__init__()
        self.buffer = ms.Parameter(ms.Tensor(np.zeros(3, np.float32)), name="buffer", requires_grad=False)


def test_state_comes_from_home_rank():
    """At a boundary, and what each rank has of its own."""
    state = stepped(manager(2), range(4))
    for onto, k in ((1, 4), (4, 1)):
        for new in resumed(Checkpoint.of([state] * 2), onto, k):
            assert tensors(new.cell) == tensors(state.cell)
            counters = new.cell.counters
            assert (counters.accumulation_steps, counters.cycles, counters.micro_steps) == (k, 2, 8 // onto)
    old = [manager(4, rank, 2, cell=train_cell(4, WithBuffer)) for rank in range(2)]
    for rank, state in enumerate(old):
        state.cell.network.buffer.set_data(ms.Tensor(np.full(3, rank + 1, np.float32)))
        stepped(state, range(2))
    checkpoint = Checkpoint.of(old)
    for rank, expected in enumerate([1, 2, 1, 2]):
        state = manager(2, rank, 4, cell=train_cell(2, WithBuffer))
        state.apply(checkpoint.for_rank(rank))
        assert float(state.cell.network.buffer.asnumpy()[0]) == expected, rank


def test_a_constant_goes_through_all_worlds():
    """2 ranks, then 1, again 1, then 4, and 2 at last; the script says K=4 all the time, or K of the new world."""
    assert resumed(saved(2, 4, 1), 1, 8)[0].cell.schedule.recorded() == [[0, 8]]
    states = [stepped(manager(4, rank, 2), [0, 1]) for rank in range(2)]
    for ranks, k in ((1, 8), (1, 8), (4, 2), (2, 4)):
        states = resumed(Checkpoint.of(states), ranks, 4)
        for state in states:
            assert (state.cell.accumulation_steps, state.cell.counters.micro_step) == (k, 4 // ranks)
            assert float(accumulators(state)[DIVISOR]) == 4 // ranks
            assert state.capture().state["train"]["first_world"] == 2
    assert_sums(states, saved(2, 4, 2).sums())
    states[0].apply(saved(2, 4, 2).for_rank(0))
    assert states[0].cell.accumulation_steps == 4, "a second restore uses K of the script"


def test_a_schedule_of_the_first_world_is_folded():
    for steps in ({0: 2, 1: 4}, lambda step: 2 if step < 1 else 4):
        (state,) = resumed(Checkpoint.of([stepped(manager(steps, 0, 2), range(4))] * 2), 1, steps)
        assert state.cell.accumulation_steps == 8
        assert [state.cell.schedule.at(step) for step in (0, 1, 9)] == [4, 8, 8]
        assert state.cell.schedule.given.at(1) == 4
        (again,) = resumed(Checkpoint.of([state]), 1, steps)
        assert again.cell.schedule.at(9) == 8


def test_unfit_checkpoint_is_refused_without_changes():
    """A mapping of K beforehand, a function once it is asked for such a step, or if it fits neither world."""
    checkpoint, mapping, function = saved(2, 4, 1), {0: 4, 9: 3}, lambda step: 4 if step < 1 else 3
    boundary = Checkpoint.of([stepped(manager(4, 0, 2), range(4))] * 2)
    for onto, k, made, options, message in [
        (1, 8, checkpoint, {"elastic": False}, r"by 2 ranks, this job has 1\. Start 2 ranks, or pass .*elastic=True"),
        (3, 4, checkpoint, {}, r"2 x 4 = 8 micro-batches, not divisible by 3\..* with 1, 2 ranks; or.* 1, 2, 4, 8 "),
        (8, 1, checkpoint, {}, r"2 x 1 = 2 micro-batches, not divisible by 8"),
        (1, 6, checkpoint, {}, "by 2 ranks with accumulation_steps=4, which is 8 for 1 ranks; this train cell has 6"),
        (1, 6, checkpoint, {"on_k_change": "next_cycle"}, "which is 8 for 1 ranks; this train cell has 6"),
        (1, {0: 8, 5: 16}, checkpoint, {}, r"which is 8 for 1 ranks; this train cell has \{0: 8, 5: 16\}"),
        (4, mapping, saved(2, mapping, 2), {}, "2 x 3 = 6 micro-batches, not divisible by 4"),
        (4, function, boundary, {}, "accumulation_steps=4, which is 2 for 4 ranks; this train cell has 3 at this step"),
        (1, 6, saved(1, 4, 1), {}, "accumulation_steps=4, this train cell has 6"),
    ]:
        state = manager(k, 0, onto, **options)
        before = tensors(state.cell), state.cell.counters, state.cell.schedule, state.progress()
        with pytest.raises(ResumeError, match=message):
            state.apply(made.for_rank(0))
        assert (tensors(state.cell), state.cell.counters, state.cell.schedule, state.progress()) == before
        assert state._sources.first_world is None
        state.cell(*micro_batch(0))  # not marked as half restored
    state = manager(function, 0, 4)
    state.apply(saved(2, function, 2).for_rank(0))
    assert state.cell.accumulation_steps == 2
    with pytest.raises(ValueError, match=r"2 ranks x accumulation_steps=3 = 6 .* cannot be shared by 4 ranks"):
        state.cell(*micro_batch(0))
    state = manager(6, on_k_change="next_cycle")  # where elastic changes nothing
    state.apply(saved(1, 4, 1).for_rank(0))
    assert (state.cell.accumulation_steps, state.cell.schedule.at(1)) == (4, 6)


def foreign(k, rank, size, delivered=0, micro_step=0):
    network = Quiet()
    cell = nn.TrainOneStepCell(network, nn.Momentum(network.trainable_params(), 0.1, 0.9))
    state = manager(
        k, rank, size, cell=cell.set_train(), cycle=types.SimpleNamespace(accumulation_steps=k, micro_step=micro_step)
    )
    state.count_delivered(delivered)
    return state


def test_foreign_cell_may_change_world_at_boundary():
    """It must have the accumulation steps of the new world."""
    checkpoint = Checkpoint.of([foreign(2, rank, 2, 6) for rank in range(2)])
    state = foreign(4, 0, 1)
    state.apply(checkpoint.for_rank(0))
    assert (state.progress().batches_delivered, state.progress().cycles) == (12, 3)
    with pytest.raises(ResumeError, match="accumulation_steps=2 at this step, which is 4 at this step for 1 ranks"):
        foreign(2, 0, 1).apply(checkpoint.for_rank(0))
    old = Checkpoint.of([foreign(2, rank, 2, 1, micro_step=1) for rank in range(2)])
    with pytest.raises(ResumeError, match="it is unknown what it accumulated"):
        foreign(4, 0, 1).apply(old.for_rank(0))


def test_cell_given_by_name_keeps_its_world():
    """A train cell, whose cycles cannot be converted."""
    cells = [train_cell(3) for _ in range(4)]
    states = [stepped(manager(2, rank, 2, other=cells[rank]), range(1)) for rank in range(2)]
    for other in cells[:2]:
        other(*micro_batch(0))
    checkpoint, before = Checkpoint.of(states), tensors(cells[2])
    with pytest.raises(ResumeError, match=r"a train cell that is given by name cannot be converted\. Start 2 ranks"):
        manager(4, other=cells[2]).apply(checkpoint.for_rank(0))
    assert tensors(cells[2]) == before
    state = manager(2, 1, 2, other=cells[3])
    state.apply(checkpoint.for_rank(1))
    assert (state.cell.counters.micro_step, cells[3].counters.micro_step) == (1, 1)


def test_a_stored_checkpoint_goes_on_in_another_world(root):
    """As each rank is given it; how many ranks open it together is `test_ranks`'s."""
    old = manager(8)
    with ck.CheckpointManager(root) as saves:
        saves.restore(old)
        saves.save(stepped(old, range(4)))
    before, storage = accumulators(old), LocalStorage(root)
    newest = max(Index(storage).names)
    for rank in range(2):
        state = manager(8, rank, 2)
        state.apply(load(storage, open_checkpoint(storage, newest, Index(storage).document(newest.attempt))))
        state.cell.network.out.weight.set_data(ms.Tensor(np.zeros((3, 8), np.float32)))
        sums = state.cell.accumulators[0]
        sums.set_data(ms.Tensor(np.zeros(sums.shape, np.float32)))
        state.start.undo_changes()
        assert state.progress().micro_step == 2
        np.testing.assert_array_equal(state.cell.network.out.weight.asnumpy(), old.cell.network.out.weight.asnumpy())
        for name, found in accumulators(state).items():
            np.testing.assert_array_equal(found * 2, before[name])
