"""K as a schedule, and K that was changed between two starts."""

from __future__ import annotations

import pytest
from mindspore.train import Callback
from support.training import (
    SIZE,
    Job,
    accumulation_cell,
    checkpoints,
    crashed,
    survived,
    tensors,
)

import ckptkit as ck

GROWING = {0: 1, 3: 2, 6: 5}
EPOCHS = 3
STEPS = EPOCHS * SIZE


def growing():
    return accumulation_cell(GROWING)


def by_function():
    return accumulation_cell(lambda step: 1 + step // 2)


def test_schedule_is_asked_at_every_cycle_start():
    job = Job(cell=growing)
    seen = []

    class Look(Callback):
        def on_train_step_end(self, run_context):
            counters = job.cell.counters
            seen.append((counters.updates, job.cell.accumulation_steps))

    job.uninterrupted(EPOCHS, Look())
    assert all(k == {0: 1, 1: 1, 2: 1, 3: 2, 4: 2, 5: 2}.get(updates, 5) for updates, k in seen)
    # 3 cycles of 1, 3 of 2, then 5 each.
    assert job.cell.counters.updates == 3 + 3 + (STEPS - 9) // 5
    assert job.cell.counters.micro_step == (STEPS - 9) % 5


def test_resumes_exactly_within_cycles_of_every_length(tmp_path):
    for cell, kills in ((growing, (3, 7, 10, 13)), (by_function, (9,))):
        expected = Job(cell=cell).uninterrupted(2).steps
        steps, _ = survived(tmp_path / cell.__name__, kills, 2, cell=cell)
        assert steps == expected, cell.__name__


def test_changed_k_is_refused_with_advice(tmp_path):
    wanted = r"=4, this train.*Build it with accumulation_steps=4.*on_k_change=\"next_cycle\""
    for at, changed in ((9, 2), (11, {0: 4, 50: 2})):  # saved at a boundary, and within a cycle
        crashed(tmp_path / str(at), at)
        job = Job(cell=lambda changed=changed: accumulation_cell(changed))
        before = tensors(job.cell)
        with pytest.raises(ck.ResumeError, match=wanted):
            job.resumed(checkpoints(tmp_path / str(at)), EPOCHS)
        assert tensors(job.cell) == before, at


@pytest.mark.parametrize(("at", "mode"), [(12, "pynative"), (9, "pynative"), (11, "graph")])
def test_changed_k_takes_effect_at_next_boundary(tmp_path, at, mode):
    crashed(tmp_path, at, mode=mode)
    job = Job(cell=lambda: accumulation_cell(3), mode=mode)
    steps = job.resumed(checkpoints(tmp_path, on_k_change="next_cycle"), EPOCHS).steps
    # The same as a schedule that had planned it so: two cycles, or three, of 4, and then 3.
    cycles_of_four = 2 if at == 9 else 3
    planned = Job(cell=lambda: accumulation_cell({0: 4, cycles_of_four: 3}), mode=mode)
    expected = planned.uninterrupted(EPOCHS).steps
    assert steps == {step: expected[step] for step in range(at, STEPS + 1)}
    assert job.cell.counters == planned.cell.counters


def test_a_function_of_k_that_depends_on_other_things_is_told_so(tmp_path):
    given = {"k": 4}

    def cell():
        return accumulation_cell(lambda updates: given["k"])

    crashed(tmp_path, 9, cell=cell)
    given["k"] = 9
    said = (
        r"=4 at this step, this train cell has 9 at this step.*depends on given. Let it depend on the number of updates"
    )
    with pytest.raises(ck.ResumeError, match=said):
        Job(cell=cell).resumed(checkpoints(tmp_path), EPOCHS)


def test_the_options_are_checked():
    with pytest.raises(ValueError, match="on_k_change must be"):
        ck.StateManager(accumulation_cell(), training=ck.Training(on_k_change="now"))
