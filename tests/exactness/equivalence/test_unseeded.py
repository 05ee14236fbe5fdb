"""Where the user sets no seed, a run still goes on with its own order of data, and every sample comes once."""

from __future__ import annotations

import shutil

import pytest

from exactness.equivalence.chain import last_committed, run
from exactness.equivalence.comparison import assert_continues, assert_equal, steps
from exactness.equivalence.job import BATCHES_PER_EPOCH, EPOCHS, SAMPLES_PER_BATCH, Case, Job, Kill

KILLED_AT = 11  # with K = 4 and what must have been committed, the resumed process begins in mid-cycle


@pytest.mark.parametrize("mode", ["pynative", pytest.param("graph", marks=pytest.mark.extended)])
def test_two_resumes_of_an_unseeded_run_are_equal(mode, tmp_path):
    case = Case(mode, 4, "Adam", "dense", "train", seed=None)
    root = tmp_path / "run"
    first = run(Job(case, str(root), str(tmp_path / "first"), Kill("step_end", KILLED_AT)))
    committed = last_committed(root)
    assert committed in (KILLED_AT - 2, KILLED_AT - 1)
    shutil.copytree(root, tmp_path / "copy")
    resumed = run(Job(case, str(root), str(tmp_path / "resumed")))
    again = run(Job(case, str(tmp_path / "copy"), str(tmp_path / "again")))
    assert_continues(case, resumed, again, None, committed)
    assert_equal(first, [line for line in resumed if line.event == "step" and line.at <= KILLED_AT])
    assert_every_sample_once_per_epoch([*(line for line in first if line.at <= committed), *resumed])
    other = run(Job(case, str(tmp_path / "other"), str(tmp_path / "trace-other"), Kill("step_end", 1)))
    assert first[1].samples != other[1].samples, "otherwise nothing was drawn"


def assert_every_sample_once_per_epoch(trace):
    assert steps(trace) == list(range(1, EPOCHS * BATCHES_PER_EPOCH + 1))
    delivered = [sample for line in trace for sample in line.samples]
    size = BATCHES_PER_EPOCH * SAMPLES_PER_BATCH
    epochs = [delivered[begin : begin + size] for begin in range(0, EPOCHS * size, size)]
    assert len({*delivered}) == size
    for epoch in epochs:
        assert sorted(epoch) == sorted({*delivered})
    assert epochs[0] != epochs[1]
