from datetime import timedelta

import pytest
from support.heartbeats import record_of

from ckptkit.manager.heartbeat import Phase
from ckptkit.tools.supervisor.hang import RunLimits, Watch

OPTIONS = RunLimits(hang_after=timedelta(seconds=10), limits={Phase.EVALUATING: timedelta(seconds=100)})


def watch(states=None) -> Watch:
    return Watch(OPTIONS, lambda pid: (states or {}).get(pid, "S"))


def found(one: Watch, records, now):
    """What two looks in a row find."""
    one.check(records, now)
    return one.check(records, now + 0.5)


def test_training_without_a_step_hangs_after_the_limit():
    record = record_of(stepped_at=50.0, slowest=0.1)
    assert found(watch(), [record], 59.0) is None
    assert found(watch(), [record], 61.0).seconds == pytest.approx(11.5)
    slow = record_of(stepped_at=0.0, slowest=5.0)  # slow steps are given twenty of them
    assert found(watch(), [slow], 90.0) is None
    assert found(watch(), [slow], 101.0) is not None


def test_time_in_which_the_supervisor_did_not_run_is_no_hang():
    watching, record = watch(), record_of(stepped_at=50.0, slowest=0.1)
    watching.check([record], 51.0)
    assert found(watching, [record], 300.0) is None
    assert found(watching, [record], 309.0) is None
    assert found(watching, [record], 311.0).seconds == pytest.approx(11.5)


def test_sign_between_two_looks_clears_the_suspicion():
    watching = watch()
    assert watching.check([record_of(stepped_at=0.0)], 100.0) is None, "one look is not enough"
    assert watching.check([record_of(stepped_at=89.0)], 100.5) is None


def test_other_phases_have_their_own_limits():
    for phase, limit in ((Phase.EVALUATING, 100), (Phase.FIRST_STEP, 3600), (Phase.REPLAYING, 3600)):
        record = record_of(phase, entered_at=0.0)
        assert found(watch(), [record], limit - 1) is None, phase
        assert found(watch(), [record], limit + 1) is not None, phase
    replayed = record_of(Phase.REPLAYING, entered_at=0.0, sign_at=5000.0)  # a batch of it is a sign
    assert found(watch(), [replayed], 6000.0) is None


def test_stopped_process_hangs_in_any_phase():
    hang = found(watch({100: "T"}), [record_of(Phase.FIRST_STEP, entered_at=0.0)], 11.0)
    assert hang.is_stopped
    assert found(watch({100: None}), [record_of(stepped_at=0.0)], 60.0) is None, "one that has ended does not count"


def test_rank_that_holds_up_the_others_is_named():
    behind, there = {"micro_step": 7, "begun_step": 8}, {"micro_step": 8, "begun_step": 8}
    for number, (fields, culprit) in enumerate(
        (
            ((there, behind, there), 1),
            ((behind, {"micro_step": 7, "begun_step": 7}), 1),  # it got no batch
            (({"micro_step": 7, "is_meeting": 1}, {"micro_step": 7}), 1),  # it does not wait for the other one
            (({"micro_step": 7}, {"micro_step": 7}), None),
        )
    ):
        records = ranks(*fields)
        hang = found(watch(), records, 60.0)
        assert hang.culprit is (None if culprit is None else records[culprit]), number


def ranks(*fields):
    return [record_of(rank=at, pid=100 + at, ranks=len(fields), **one) for at, one in enumerate(fields)]


def test_ranks_that_wait_for_an_evaluation_do_not_hang():
    both = ranks({"phase": Phase.EVALUATING, "entered_at": 0.0}, {"stepped_at": 0.0})
    assert found(watch(), both, 60.0) is None
    assert found(watch(), both, 120.0) is not None
