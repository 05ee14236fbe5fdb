"""``remainder``: what becomes of a cycle that an epoch ends in the middle of, and that it resumes exactly."""

from __future__ import annotations

import mindspore as ms
import pytest
from mindspore import nn
from support.integers import Linear, momentum, rows
from support.training import (
    SIZE,
    Job,
    K,
    accumulation_cell,
    checkpoints,
    pipeline,
    samples,
    survived,
    tensors,
)

import ckptkit as ck
from ckptkit.mindspore.train.cell import mark_half_restored, refuse_half_restored

EPOCHS = 3
# Updates and cycles of three epochs of 11 batches with K = 4.
COUNTS = {"carry": (8, 8, 1), "flush": (9, 9, 0), "drop": (6, 9, 0)}


def build(k=4, **options):
    network = Linear()
    return ck.AccumulationTrainCell(network, momentum(network), k, **options).set_train()


def learned(cell):
    return {name: bits for name, bits in tensors(cell).items() if name in ("w", "moments.w", "global_step")}


def test_flushed_cycle_averages_its_micro_batches():
    cell = build(remainder="flush")
    data = rows(24)
    for first in range(0, 24, 4):
        cell(ms.Tensor(data[first : first + 4]))
    assert cell.counters.micro_step == 2
    cell.end_epoch()
    assert cell.updated
    assert not any(any(one.asnumpy().tobytes()) for one in cell.accumulators)
    plain = nn.TrainOneStepCell(network := Linear(), momentum(network)).set_train()
    plain(ms.Tensor(data[:16]))
    plain(ms.Tensor(data[16:]))
    assert learned(cell) == learned(plain)


def test_a_dropped_cycle_leaves_no_trace():
    cell, short = build(remainder="drop"), build()
    for seed in range(6):
        cell(ms.Tensor(rows(4, seed)))
    cell.end_epoch()
    assert not cell.updated
    for seed in range(4):
        short(ms.Tensor(rows(4, seed)))
    for seed in (8, 9, 10, 11):
        cell(ms.Tensor(rows(4, seed)))
        short(ms.Tensor(rows(4, seed)))
    assert learned(cell) == learned(short)
    assert (cell.counters.cycles, cell.counters.updates, cell.counters.micro_steps) == (3, 2, 10)
    assert (short.counters.cycles, short.counters.updates) == (2, 2)


def test_epoch_end_at_boundary_changes_nothing():
    for remainder in COUNTS:
        cell = build(remainder=remainder)
        for done in range(5):
            if done % 4 == 0:
                before = tensors(cell), cell.counters
                cell.end_epoch()
                assert (tensors(cell), cell.counters) == before, remainder
            cell(ms.Tensor(rows(4, done)))


@pytest.mark.parametrize(
    ("remainder", "mode"),
    [("flush", "pynative"), ("drop", "pynative"), pytest.param("flush", "graph", marks=pytest.mark.extended)],
)
def test_resumes_exactly_around_the_ends_of_epochs(tmp_path, remainder, mode):
    def cell():
        return accumulation_cell(remainder=remainder)

    full = Job(cell=cell, mode=mode)
    expected = full.started(checkpoints(tmp_path / "full"), EPOCHS).steps
    counters = full.cell.counters
    assert (counters.updates, counters.cycles, counters.micro_step) == COUNTS[remainder]
    # After the save at: the epoch's last batch, the first of the next, and mid-cycle.
    kills = (SIZE + 1, SIZE + 2, 2 * SIZE)
    steps, last = survived(tmp_path / "killed", kills, EPOCHS, cell=cell, mode=mode)
    assert steps == expected
    assert tensors(last.cell) == tensors(full.cell)
    assert last.cell.counters == counters


def test_a_flush_comes_before_the_evaluation(tmp_path):
    job = Job(cell=lambda: accumulation_cell(remainder="flush"), fit=True)
    seen = []

    class Look(ms.train.Callback):
        def on_eval_begin(self, run_context):
            seen.append(job.cell.counters.micro_step)

    checkpoints(tmp_path / "run").fit(job.model, 2, job.data, job.valid, callbacks=[Look()])
    assert seen == [0, 0]


def own_loop(root, remainder, *, end_epoch, epochs=2):
    cell, data = accumulation_cell(remainder=remainder), pipeline()
    state = ck.StateManager(cell, data)
    with ck.CheckpointManager(root, save=ck.SaveEvery(micro_steps=1000)) as manager:
        manager.restore(state)
        batches = data.create_tuple_iterator(num_epochs=epochs)
        state.iterator_made()
        for _ in range(epochs):
            for number, batch in enumerate(batches, 1):
                cell(*batch)
                if number == SIZE and end_epoch == "before":
                    cell.end_epoch()
                manager.step(state)
                if number == SIZE and end_epoch == "after":
                    cell.end_epoch()
    return cell


def test_own_loop_without_end_epoch_is_refused(tmp_path):
    for remainder, end_epoch in (("flush", "after"), ("drop", "never")):
        with pytest.raises(ck.ResumeError, match=rf"an epoch of {SIZE} batches ended within a cycle.*end_epoch\(\)"):
            own_loop(tmp_path / remainder, remainder, end_epoch=end_epoch)


def test_ones_own_loop_ends_its_epochs(tmp_path):
    for remainder, cycles in (("carry", 2 * SIZE // K), ("flush", 6), ("drop", 6)):
        cell = own_loop(tmp_path / remainder, remainder, end_epoch="before")
        assert cell.counters.micro_steps == 2 * SIZE
        assert cell.counters.cycles == cycles, remainder


def test_restored_counters_await_nothing():
    cell = accumulation_cell(1, remainder="drop")
    cell(*map(ms.Tensor, samples(4).values()))
    assert cell.updated
    mark_half_restored([cell], "it")
    cell.load_counters(cell.counters)
    assert not cell.updated
    refuse_half_restored([cell])  # whoever gives it counters has given it its parameters
    cell = accumulation_cell(remainder="drop")
    cell.expect_epoch_end()
    cell.load_counters(cell.counters)
    cell(*map(ms.Tensor, samples(4).values()))
    assert cell.counters.micro_step == 1


def test_another_way_to_accumulate_is_refused(tmp_path):
    for option, before, now in (("remainder", "flush", "drop"), ("normalize", None, "samples")):
        options = {option: before} if before else {}
        Job(cell=lambda options=options: accumulation_cell(**options)).started(checkpoints(tmp_path / option), 1)
        changed = Job(cell=lambda option=option, now=now: accumulation_cell(**{option: now}))
        with pytest.raises(ck.ResumeError, match=f"taken with {option}='{before or 'micro_batches'}'.*has '{now}'"):
            changed.resumed(checkpoints(tmp_path / option), 2)
        assert changed.cell.counters.micro_steps == 0
