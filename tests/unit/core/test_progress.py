import json
from dataclasses import FrozenInstanceError

import pytest
from pydantic import TypeAdapter, ValidationError
from support.refusals import unrefused

from ckptkit.core.progress import Progress, ResumePoint

STORED = TypeAdapter(Progress)
GOOD = {
    **{"epoch": 2, "batch": 7, "cycles": 9, "updates": 8, "micro_step": 3, "accumulation_steps": 4},
    **{"batches_delivered": 39, "cycle_first_batch": 36},
}


def test_counters_that_contradict_each_other_are_refused():
    rows = [
        ({"micro_step": 4, "cycle_first_batch": 35}, "micro_step 4 is not below accumulation_steps 4"),
        ({"accumulation_steps": 0}, "accumulation_steps"),
        ({"accumulation_steps": 3}, "micro_step 3 is not below accumulation_steps 3"),
        ({"micro_step": 2}, "micro_step 2 is not batches_delivered 39 minus cycle_first_batch 36"),
        ({"cycle_first_batch": 40}, "is not batches_delivered 39 minus cycle_first_batch 40"),
        ({"updates": 10}, "updates 10 exceed cycles 9"),
        ({"batch": 40}, "batch 40 exceeds batches_delivered 39"),
    ]
    rows += [({"epoch": value}, "epoch") for value in (10**15 + 1, "1", None)]  # hostile documents have more
    assert unrefused(ValidationError, lambda change: STORED.validate_json(json.dumps({**GOOD, **change})), rows) == {}
    assert unrefused(ValueError, lambda change: Progress(**{**GOOD, **change}), rows[:-3]) == {}


def test_counters_survive_json_and_reach_the_resume_point():
    """Updates may lag behind cycles: those with an overflow make none."""
    for micro_step in (0, 3):
        progress = Progress(**{**GOOD, "micro_step": micro_step, "batches_delivered": 36 + micro_step})
        assert STORED.validate_json(STORED.dump_json(progress)) == progress
        assert progress.at_boundary is (micro_step == 0)
    with pytest.raises(FrozenInstanceError):
        progress.epoch = 3
    assert ResumePoint() == ResumePoint(0, 0, 0, 0, 0, complete=False, checkpoint=None)
    point = ResumePoint.at(Progress(**GOOD), "a000001-c0000000009-m0003")
    assert point == ResumePoint(2, 7, 8, 3, 39, complete=False, checkpoint="a000001-c0000000009-m0003")
