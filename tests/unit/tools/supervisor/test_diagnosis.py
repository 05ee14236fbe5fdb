import signal

from support.heartbeats import life_of, record_of

from ckptkit.manager.heartbeat import Phase
from ckptkit.tools.supervisor.diagnosis import diagnose, place_of, signal_of
from ckptkit.tools.supervisor.hang import Hang, Stack

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
    (life_of(record_of(), returncode=143), "killed"),
    (life_of(record_of(ranks=2), returncode=143), "killed"),  # MindSpore's own signal, after it has lost a rank
    (life_of(record_of(how="preempted"), returncode=143, asked=signal.SIGTERM), "preempted"),
    (life_of(requested("terminated"), returncode=143), "killed"),
    (life_of(requested("terminated"), returncode=0), "killed"),  # Preemption(then="return")
    (life_of(requested("terminated", how=""), returncode=143), "killed"),  # the grace was over
    (life_of(requested("child-died"), returncode=143), "killed"),
    (life_of(requested("child-died"), returncode=143, oom_kills=1), "out-of-memory"),
    (life_of(requested("child-died"), returncode=143, asked=signal.SIGTERM), "preempted"),
    (life_of(requested("asked"), returncode=143), "preempted"),  # or a rank of another machine was asked
    (life_of(requested("asked"), returncode=0), "preempted"),
    (life_of(requested("asked", how=""), returncode=143), "preempted"),
    (life_of(record_of(ranks=2), returncode=143, asked=signal.SIGTERM), "preempted"),
    (life_of(requested("asked"), returncode=1), "preempted"),
    (life_of(returncode=-15, asked=signal.SIGTERM), "preempted"),
    (life_of(returncode=-2, asked=signal.SIGINT), "interrupted"),
    (life_of(returncode=143, asked=signal.SIGINT), "preempted"),
    (life_of(returncode=2), "usage"),
    (life_of(record_of(), returncode=2), "exit"),
    (life_of(record_of(), returncode=7), "exit"),
    (life_of(returncode=1, last_words=TRACEBACK.format("KeyError: 'x'")), "exception"),
    (life_of(returncode=1, last_words=TRACEBACK.format("torch.Bad.Error")), "exception"),
    (life_of(returncode=1, last_words=TRACEBACK.format("MemoryError")), "out-of-memory"),
    (life_of(returncode=1, last_words=TRACEBACK.format("OSError: [Errno 28] No space left on device")), "disk-full"),
    (life_of(record_of(), returncode=-9), "killed"),
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
    (life_of(record_of(how="closed"), returncode=3, pid=1), "exit"),
    (life_of(record_of(), returncode=-11), "crash"),
    (life_of(record_of(), returncode=139), "crash"),
    (life_of(error(category="disk-full"), returncode=1), "disk-full"),
    (life_of(error(category="overtaken"), returncode=1), "overtaken"),
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


def test_training_that_ended_before_the_last_one_is_left_out():
    first = record_of(Phase.ENDED, pid=1, root="a", attempt=1, opened_at=1.0, micro_step=1000, how="finished")
    last = record_of(pid=2, root="b", attempt=1, opened_at=50.0, micro_step=7, error="E", failed_in=Phase.TRAINING)
    found = diagnose(life_of(first, last, returncode=1, deaths={1: 49.0, 2: 90.0}))
    assert (found.cause, found.where) == ("exception", "before the end of micro-step 8 (batch 7 of the run)")


def test_rank_whose_error_others_repeat_is_named():
    ranks = (
        rank(0, error="ResumeError", message="rank 1: bad label", how="failed"),
        rank(1, error="ValueError", message="bad label", how="failed", failed_in=Phase.TRAINING),
    )
    found = diagnose(life_of(*ranks, returncode=1, deaths={100: 0.0, 101: 1.0}))
    assert (found.cause, found.rank, found.what) == ("exception", 1, "ValueError: bad label")


def test_crash_of_a_rank_is_known_by_its_stacks():
    life = life_of(rank(0, how="failed", error="E", message="x"), rank(1), returncode=1, deaths={101: 0.0, 100: 1.0})
    life.stacks = [Stack(1, 101, ["Fatal Python error: Segmentation fault", "", "Thread 0x1"])]
    assert (diagnose(life).cause, diagnose(life).signal) == ("crash", "SIGSEGV")


def test_hang_names_the_rank_that_is_stopped():
    life = life_of(rank(0), rank(1), returncode=-9)
    life.hang = Hang(life.records[1], 61.0, is_stopped=True)
    found = diagnose(life)
    assert (found.cause, found.rank) == ("hang", 1)
    assert found.why.startswith("rank 1 was stopped by a signal for 61 s, and the others waited for it")


def test_place_is_named():
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


def test_signal_is_read_from_an_exit_code():
    names = {-9: "SIGKILL", 137: "SIGKILL", 1: None, 0: None, 255: None, 200: None}
    assert {code: signal_of(code) for code in names} == names
