"""A second start on a run whose first process may be alive: what it takes over, what it says, and what it refuses."""

import os
import sys
from datetime import datetime, timedelta, timezone

import pytest
from support.runs.scenario import Life, corrupt, digest_at, name_at, tree
from support.thread_ranks import results_of, run_ranks

from ckptkit.errors import ResumeError, StaleAttemptError
from ckptkit.run.takeover import this_process
from ckptkit.testing.state import NumpyRun

HERE = this_process().split(" (pid ", maxsplit=1)[0]
ALIVE = f"{HERE} (pid {os.getppid()})"  # it began before this process
ELSEWHERE = "far (pid 1)"


def now():
    return datetime.now(timezone.utc)


@pytest.fixture(params=["gone", "zombie"])
def dead(request):
    """A process that has ended, and that its parent has waited for, or not."""
    pid = os.posix_spawn(sys.executable, [sys.executable, "-c", ""], os.environ)
    os.waitid(os.P_PID, pid, os.WEXITED | (os.WNOWAIT if request.param == "zombie" else 0))
    yield f"{HERE} (pid {pid})"
    if request.param == "zombie":
        os.waitpid(pid, 0)


def started(root, host, at=now, **options):
    life = Life(root, host=host, clock=at, **options)
    life.restore()
    life.saved_at(4)
    return life


def is_taken_for_living(root, monkeypatch, caplog):
    """Start where a takeover is refused, and again where it is only said."""
    caplog.clear()
    before = tree(root)
    monkeypatch.setenv("CKPTKIT_TAKEOVER", "refuse")
    try:
        Life(root).restore()
    except ResumeError as error:
        said = str(error)
    else:
        assert "TAKEN OVER" not in caplog.text
        return False
    assert "CKPTKIT_TAKEOVER refuses" in said
    assert tree(root) == before
    monkeypatch.setenv("CKPTKIT_TAKEOVER", "")  # an empty wish is none
    assert Life(root).restore().checkpoint == name_at(1, 4)
    assert "TAKEN OVER FROM A PROCESS THAT MAY BE ALIVE" in caplog.text
    return True


WHO = {  # who started first, how long ago, and whether it is taken for living
    "alive": (ALIVE, timedelta(), True),
    "another process of that number": (ALIVE, timedelta(days=9999), False),
    "this process": (this_process(), timedelta(), False),
    "elsewhere": (ELSEWHERE, timedelta(minutes=9), True),
    "elsewhere and silent": (ELSEWHERE, timedelta(minutes=11), False),
    "elsewhere by another clock": (ELSEWHERE, -timedelta(minutes=5), True),
    "no number": ("node", timedelta(), False),  # as earlier versions wrote it
}


@pytest.mark.parametrize("who", WHO)
def test_who_may_be_alive(root, who, monkeypatch, caplog):
    """Of another machine, its events alone tell; of this one, that it has closed, too."""
    host, age, is_living = WHO[who]
    for events in (True, False):
        place = root / str(events)
        started(place, host, lambda: now() - age, events=events)
        is_living = is_living and (events or host == ALIVE)
        assert is_taken_for_living(place, monkeypatch, caplog) is is_living
    started(root / "closed", host).manager.close()
    assert not is_taken_for_living(root / "closed", monkeypatch, caplog)


def test_the_dead_are_not_alive(root, dead, monkeypatch, caplog):
    started(root, dead)
    assert not is_taken_for_living(root, monkeypatch, caplog)


def test_warning_names_host_process_and_age(root, caplog):
    first = started(root, ELSEWHERE, lambda: now() - timedelta(seconds=170))
    Life(root).restore()
    assert f"the run {root} belonged to attempt 1 on {ELSEWHERE}, with a record 17" in caplog.text
    assert isinstance(first.save_at(8).exception(), StaleAttemptError)


class Done(NumpyRun):
    def is_over(self):
        return True


def complete(root, **options):
    life = Life(root, **options)
    life.run = Done(size=5)
    return life


@pytest.mark.parametrize(("host", "wish"), [(ALIVE, "refuse"), (ELSEWHERE, "warn"), ("node", "refuse")])
def test_start_with_nothing_to_train_takes_nothing_over(root, host, wish, monkeypatch, caplog):
    monkeypatch.setenv("CKPTKIT_TAKEOVER", wish)
    first = started(root, host)
    before = tree(root)
    second = complete(root)
    point = second.restore()
    assert (point.checkpoint, point.complete) == (name_at(1, 4), True)
    assert second.run.digest() == digest_at(4)
    second.manager.declare_complete()
    assert second.manager.save_final(second.run) == name_at(1, 4)
    with pytest.raises(ResumeError, match="nothing was left to train at"):
        second.manager.save(second.run)
    second.manager.close()
    assert tree(root) == before
    assert first.saved_at(8) == name_at(1, 8)
    corrupt(root, name_at(1, 8))
    assert complete(root).restore().checkpoint == name_at(1, 4)
    assert f"passed over {name_at(1, 8)}" in caplog.text


def test_many_ranks_take_nothing_over_together(root):
    def act(world, kind, host):
        life = Life(root, host=host, preempt_when=None, on_preempt="off")
        life.run = kind(size=5, world=world)
        point = life.restore()
        return life.saved_at(8) if kind is NumpyRun else (point.checkpoint, point.complete)

    first, _ = results_of(run_ranks(2, lambda world: act(world, NumpyRun, ALIVE)))
    before = tree(root)
    assert results_of(run_ranks(2, lambda world: act(world, Done, this_process()))) == [(first, True)] * 2
    assert tree(root) == before
