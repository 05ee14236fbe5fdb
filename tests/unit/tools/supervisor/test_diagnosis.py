import itertools
import os
import signal
from datetime import timedelta

import pytest
from support.heartbeats import life_of, record_of

from ckptkit.core.worker import Latch
from ckptkit.manager.heartbeat import Phase
from ckptkit.tools.supervisor import supervisor
from ckptkit.tools.supervisor.diagnosis import (
    CODE_OR_DATA,
    GIVEN_UP,
    LifeFinding,
    RestartBudget,
    diagnose,
    place_of,
)
from ckptkit.tools.supervisor.hang import Hang, RunLimits, Stack, Watch
from ckptkit.tools.supervisor.life import Job
from ckptkit.tools.supervisor.supervisor import Supervisor, pause_before

TRACEBACK = 'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n{}\n'
DEAD = "child process 7, probably a data worker, was killed by SIGKILL"
BAD_ALLOC = "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc"


def error(kind: str = "ValueError", message: str = "bad", **fields):
    return record_of(error=kind, message=message, failed_in=Phase.TRAINING, how="failed", **fields)


def requested(by: str, **fields):
    why = f"SIGTERM after {DEAD}" if by == "child-died" else "SIGTERM" if by == "terminated" else "SIGUSR1"
    place = {"failed_in": Phase.TRAINING, "micro_step": 74, "begun_step": 74}
    return record_of(Phase.ENDED, **{"category": by, "message": why, "how": "preempted", **place, **fields})


CAUSES = [
    (life_of(returncode=0), "finished"),
    (life_of(returncode=143), "killed"),
    (life_of(record_of(ranks=2), returncode=143), "killed"),  # MindSpore's own signal, after it has lost a rank
    (life_of(requested("terminated"), returncode=143), "killed"),
    (life_of(requested("terminated"), returncode=0), "killed"),  # Preemption(then="return")
    (life_of(requested("terminated", how=""), returncode=143), "killed"),  # the grace was over
    (life_of(requested("child-died"), returncode=143), "killed"),
    (life_of(requested("child-died"), returncode=143, oom_kills=1), "out-of-memory"),
    (life_of(requested("asked"), returncode=143), "preempted"),  # or a rank of another machine was asked
    (life_of(requested("asked"), returncode=0), "preempted"),
    (life_of(returncode=-15, asked=signal.SIGTERM), "preempted"),
    (life_of(returncode=-2, asked=signal.SIGINT), "interrupted"),
    (life_of(returncode=143, asked=signal.SIGINT), "preempted"),
    (life_of(returncode=2), "usage"),
    (life_of(returncode=1, last_words=TRACEBACK.format("KeyError: 'x'")), "exception"),
    (life_of(returncode=1, last_words=TRACEBACK.format("MemoryError")), "out-of-memory"),
    (life_of(returncode=1, last_words=TRACEBACK.format("OSError: [Errno 28] No space left on device")), "disk-full"),
    (life_of(record_of(), returncode=137), "killed"),
    (life_of(record_of(), returncode=-9, oom_kills=1), "out-of-memory"),
    (life_of(record_of(), returncode=-6, last_words=BAD_ALLOC), "out-of-memory"),
    (life_of(returncode=1, last_words="worker 3: caught MemoryError, retrying"), "exit"),
    (life_of(returncode=1, last_words=f"No space left on device\n{TRACEBACK.format('ValueError: x')}"), "exception"),
    (life_of(returncode=1, last_words='  File "a.py", line 1\n    x = = 3\n        ^\nSyntaxError: no'), "exception"),
    (life_of(record_of(how="finished"), returncode=0, asked=signal.SIGTERM), "finished"),
    (life_of(record_of(), returncode=0, pid=100), "finished"),
    (life_of(record_of(), returncode=0, pid=1), "killed"),
    (life_of(record_of(how="exited"), returncode=0, pid=1), "finished"),
    (life_of(record_of(Phase.ENDED), returncode=0, pid=1), "finished"),
    (life_of(error(), returncode=0, pid=1), "exception"),
    (life_of(error(), returncode=0, pid=100), "finished"),
    (life_of(record_of(), returncode=-11), "crash"),
    (life_of(error(category="disk-full"), returncode=1), "disk-full"),
    (life_of(error(), returncode=1), "exception"),
    (life_of(error("SystemExit", "3"), returncode=3), "exit"),
]


def test_end_has_its_cause():
    for number, (life, cause) in enumerate(CAUSES):
        assert diagnose(life).cause == cause, (number, life.returncode, life.last_words)


def rank(number: int, **fields):
    return record_of(rank=number, ranks=2, pid=100 + number, micro_step=40, **fields)


def test_sigterm_that_the_supervisor_did_not_get_is_explained():
    for ranks, named, why in (
        ([requested("child-died", ranks=1, rank=0)], None, f"SIGTERM after {DEAD} before the end of micro-step 75"),
        (
            [
                requested("child-died", ranks=2, message=f"rank 1 was asked to end after {DEAD}"),
                requested("child-died", rank=1, ranks=2, pid=101),
            ],
            1,
            f"SIGTERM after {DEAD} before the end of micro-step 75",
        ),
        (
            [requested("terminated", ranks=2), requested("asked", rank=1, ranks=2, pid=101)],
            0,
            "SIGTERM ended it, and not by way of `ckptkit run`; MindSpore sends that when another rank is lost",
        ),
        ([requested("terminated", ranks=2), record_of(rank=1, ranks=2, pid=101)], 1, "rank 1 ended without a word"),
    ):
        found = diagnose(life_of(*ranks, returncode=143, deaths={101: 0.0, 100: 1.0}))
        assert (found.cause, found.rank, found.why[: len(why)]) == ("killed", named, why)


def test_rank_that_ended_the_life_is_named():
    """By its own error, where others repeat that; by its stacks, where it crashed; or since it was stopped."""
    ranks = (
        rank(0, error="ResumeError", message="rank 1: bad label", how="failed"),
        rank(1, error="ValueError", message="bad label", how="failed", failed_in=Phase.TRAINING),
    )
    found = diagnose(life_of(*ranks, returncode=1, deaths={100: 0.0, 101: 1.0}))
    assert (found.cause, found.rank, found.what) == ("exception", 1, "ValueError: bad label")
    life = life_of(rank(0, how="failed", error="E", message="x"), rank(1), returncode=1, deaths={101: 0.0, 100: 1.0})
    life.stacks = [Stack(1, 101, ["Fatal Python error: Segmentation fault", "", "Thread 0x1"])]
    assert (diagnose(life).cause, diagnose(life).signal) == ("crash", "SIGSEGV")
    life = life_of(rank(0), rank(1), returncode=-9)
    life.hang = Hang(life.records[1], 61.0, is_stopped=True)
    found = diagnose(life)
    assert (found.cause, found.rank) == ("hang", 1)
    assert found.why.startswith("rank 1 was stopped by a signal for 61 s, and the others waited for it")


def test_place_in_the_last_training_is_named():
    batch = {"epoch_size": 45, "data": "/data/train"}
    for record, place in (
        (record_of(Phase.RESTORING), "before training (restoring)"),
        (
            record_of(micro_step=99, begun_step=100, **batch),
            "in micro-step 100 (epoch 2, batch 9 of 45 from /data/train)",
        ),
        (record_of(micro_step=99, begun_step=99), "before the end of micro-step 100 (batch 99 of the run)"),
        (record_of(Phase.EVALUATING, micro_step=90, epoch_size=45), "after micro-step 90 (evaluating)"),
        (record_of(Phase.ENDED, micro_step=90), "after training had ended"),
        (record_of(Phase.REPLAYING, micro_step=90), "while data was replayed"),
    ):
        assert place_of(record) == place
    first = record_of(Phase.ENDED, pid=1, root="a", attempt=1, opened_at=1.0, micro_step=1000, how="finished")
    last = record_of(pid=2, root="b", attempt=1, opened_at=50.0, micro_step=7, error="E", failed_in=Phase.TRAINING)
    found = diagnose(life_of(first, last, returncode=1, deaths={1: 49.0, 2: 90.0}))
    assert (found.cause, found.where) == ("exception", "before the end of micro-step 8 (batch 7 of the run)")


def died(step: int, *, number: int, restored: int = 0, committed: int = -1, phase=Phase.TRAINING, code: int = -9):
    fields = {"micro_step": step, "restored_step": restored, "committed_step": committed, "root": "r"}
    return life_of(record_of(phase, **fields), number=number, returncode=code)


def judged(budget: RestartBudget, life):
    return budget.judge(life, diagnose(life))


def test_lives_without_progress_pause_longer_and_end_it():
    budget = RestartBudget(3)
    codes = [judged(budget, died(step, number=step, committed=-1)).exit_code for step in (5, 6, 7)]
    assert codes == [None, None, GIVEN_UP]
    assert judged(RestartBudget(1), died(5, number=1)).next_move.startswith("1 life in a row committed nothing new")
    before = died(117, number=1, restored=110, committed=110)
    assert judged(RestartBudget(1), before).exit_code == GIVEN_UP, "it was committed before"
    budget = RestartBudget(2)
    lives = [died(15, number=1, committed=10), died(16, number=2, committed=10), died(17, number=3, restored=10)]
    assert [judged(budget, life).in_a_row for life in lives] == [0, 1, 2]
    pauses = [pause_before(lives).total_seconds() for lives in (0, 1, 2, 3, 9, 10, 99)]
    assert pauses == [0, 1, 2, 4, 256, 300, 300]


def test_second_death_in_the_same_micro_step_ends_it():
    for code in (-9, -11, 7):
        budget = RestartBudget(9)
        assert judged(budget, died(99, number=1, restored=80, committed=90, code=code)).exit_code is None
        assert judged(budget, died(95, number=2, restored=90)).finding.cause == "killed"
        elsewhere = died(99, number=3, code=code)
        elsewhere.records[0].put("root", "another")
        assert judged(budget, elsewhere).exit_code is None, "another run is another place"
        decision = judged(budget, died(99, number=4, restored=90, code=code))
        assert (decision.exit_code, decision.finding.cause) == (CODE_OR_DATA, "code-or-data"), code
        assert "lives 1, 4 died" in decision.finding.why
    # Two kills in one compilation prove nothing.
    for code, causes in ((-9, ["killed", "killed", "code-or-data"]), (-11, ["crash", "code-or-data"])):
        budget = RestartBudget(9)
        lives = [died(80, number=n, restored=80, phase=Phase.FIRST_STEP, code=code) for n in range(len(causes))]
        assert [judged(budget, life).finding.cause for life in lives] == causes


def test_runs_of_one_command_make_progress_by_themselves():
    for complete, trained in ("a", "b"), ("b", "a"):
        budget = RestartBudget(2)
        first = record_of(Phase.ENDED, root=complete, micro_step=1000, restored_step=1000, committed_step=-1)
        for number, committed in enumerate((10, 20, 30), 1):
            fields = {"root": trained, "micro_step": committed + 5, "restored_step": committed - 10, "opened_at": 9.0}
            second = record_of(committed_step=committed, attempt=1, **fields)
            assert judged(budget, life_of(first, second, number=number, returncode=-9)).in_a_row == 0


def test_same_error_before_any_training_is_no_matter_of_the_machine():
    def ended(number, error, *records):
        words = f"Traceback (most recent call last):\n{error}\n"
        return life_of(*records, number=number, returncode=1, last_words=words)

    errors = ["KeyError: 1", "KeyError: 2", "KeyError: 2"]
    budget = RestartBudget(3)
    assert [judged(budget, ended(n, error)).exit_code for n, error in enumerate(errors)] == [None, None, GIVEN_UP]
    other = judged(RestartBudget(1), ended(1, "KeyError: 2", record_of()))
    assert "a restart fails again" not in other.next_move
    budget = RestartBudget(3)
    last = [judged(budget, ended(number, "KeyError: 1")) for number in (1, 2, 3)][-1]
    assert (last.exit_code, last.finding.cause) == (CODE_OR_DATA, "code-or-data")


def test_outage_and_full_disk_are_never_the_batch():
    for category in ("outage", "disk-full"):
        budget = RestartBudget(3)
        said = {"error": "E", "category": category, "message": "no answer", "failed_in": Phase.TRAINING}
        lives = [life_of(record_of(micro_step=80, **said), number=number, returncode=1) for number in (1, 2, 3)]
        decisions = [judged(budget, life) for life in lives]
        assert [decision.finding.cause for decision in decisions] == [category] * 3
        assert [decision.exit_code for decision in decisions] == [None, None, GIVEN_UP]


def test_same_message_about_data_is_the_data_wherever_it_comes_up():
    def died_of(step, number, message):
        said = {"error": "RuntimeError", "category": "data", "message": message, "failed_in": Phase.TRAINING}
        return life_of(record_of(Phase.TRAINING, micro_step=step, root="r", **said), number=number, returncode=1)

    budget = RestartBudget(9)
    first = [judged(budget, died_of(80, number, f"{name}.jpg is broken")) for number, name in ((1, "a"), (2, "b"))]
    assert [decision.finding.cause for decision in first] == ["data", "data"]
    third = judged(budget, died_of(83, 3, "a.jpg is broken"))
    assert (third.exit_code, third.finding.cause) == (CODE_OR_DATA, "code-or-data")
    assert "lives 1, 3 died of the same data, at last before the end of micro-step 84 " in third.finding.why
    assert "a.jpg is broken" in third.finding.why


def test_some_ends_are_the_last():
    ends = {"finished": 0, "preempted": 143, "interrupted": 143, "usage": 2, "overtaken": 65, "refused": 65}
    for cause, code in ends.items():
        assert RestartBudget(9).judge(life_of(returncode=1), LifeFinding(cause, "")).exit_code == code, cause


OPTIONS = RunLimits(hang_after=timedelta(seconds=10), limits={Phase.EVALUATING: timedelta(seconds=100)})


def watch(states=None) -> Watch:
    return Watch(OPTIONS, lambda pid: (states or {}).get(pid, "S"))


def hang_of(watching: Watch, records, now):
    watching.check(records, now)
    return watching.check(records, now + 0.5)


def test_training_without_a_step_hangs_after_the_limit():
    record = record_of(stepped_at=50.0, slowest=0.1)
    assert hang_of(watch(), [record], 59.0) is None
    assert hang_of(watch(), [record], 61.0).seconds == pytest.approx(11.5)
    slow = record_of(stepped_at=0.0, slowest=5.0)  # slow steps are given twenty of them
    assert hang_of(watch(), [slow], 90.0) is None
    assert hang_of(watch(), [slow], 101.0) is not None
    watching, record = watch(), record_of(stepped_at=50.0, slowest=0.1)
    watching.check([record], 51.0)
    for now in (300.0, 309.0):
        assert hang_of(watching, [record], now) is None, "the supervisor did not run either"
    assert hang_of(watching, [record], 311.0).seconds == pytest.approx(11.5)
    watching = watch()
    assert watching.check([record_of(stepped_at=0.0)], 100.0) is None, "one look is not enough"
    assert watching.check([record_of(stepped_at=89.0)], 100.5) is None, "a sign between two looks"


def test_other_phases_have_their_own_limits():
    for phase, limit in ((Phase.EVALUATING, 100), (Phase.FIRST_STEP, 3600), (Phase.REPLAYING, 3600)):
        record = record_of(phase, entered_at=0.0)
        assert hang_of(watch(), [record], limit - 1) is None, phase
        assert hang_of(watch(), [record], limit + 1) is not None, phase
    replayed = record_of(Phase.REPLAYING, entered_at=0.0, sign_at=5000.0)  # a batch of it is a sign
    assert hang_of(watch(), [replayed], 6000.0) is None
    hang = hang_of(watch({100: "T"}), [record_of(Phase.FIRST_STEP, entered_at=0.0)], 11.0)
    assert hang.is_stopped, "a stopped process hangs in any phase"
    assert hang_of(watch({100: None}), [record_of(stepped_at=0.0)], 60.0) is None, "one that has ended does not count"


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
        hang = hang_of(watch(), records, 60.0)
        assert hang.culprit is (None if culprit is None else records[culprit]), number


def ranks(*fields):
    return [record_of(rank=at, pid=100 + at, ranks=len(fields), **more) for at, more in enumerate(fields)]


def test_ranks_that_wait_for_an_evaluation_do_not_hang():
    both = ranks({"phase": Phase.EVALUATING, "entered_at": 0.0}, {"stepped_at": 0.0})
    assert hang_of(watch(), both, 60.0) is None
    assert hang_of(watch(), both, 120.0) is not None


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signal_while_a_hang_is_ended_is_the_end(monkeypatch, number, exit_code):
    class Runner:
        def __init__(self, *_):
            pass

        def run(self, life, folder):
            assert life == 1
            return life_of(record := record_of(), hang=Hang(record, 25.0), asked=number, returncode=-9)

    monkeypatch.setattr(supervisor, "LifeRunner", Runner)
    monkeypatch.setattr(supervisor, "become_reaper", lambda: None)
    ended = Latch()

    def upload(*_):
        os.kill(os.getpid(), signal.SIGTERM)
        ended.wait(20)

    monkeypatch.setattr(supervisor, "upload_left_behind", upload)
    said = []
    clock = itertools.count(200, 1000).__next__
    job = Job([], {}, RunLimits(), said.append, said.append, monotonic=clock, clock=lambda: None)
    assert Supervisor(job, token="0" * 32, open_root=None).run() == exit_code
    ended.open()
    assert said[-2].endswith("arrived: no other life begins")
    assert said[-1].startswith("the upload is broken off")  # by another signal
