"""The doctor examines jobs of many ranks: one rank dies or all, and a difference names its rank."""

import json
import os
import re
import select
import signal
import time
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from support import ranked_training
from support.doctor_lives import life, run_doctor, stepped
from support.process_ranks import launcher
from support.thread_ranks import results_of, run_ranks

from ckptkit.core.progress import ResumePoint
from ckptkit.manager.writer import NotEndedError
from ckptkit.run.catalog import list_checkpoints
from ckptkit.run.resolve import open_wanted
from ckptkit.storage import open_storage
from ckptkit.tools.doctor import examination
from ckptkit.tools.doctor.compare import first_difference, other_losses
from ckptkit.tools.doctor.examination import DoctorExamination
from ckptkit.tools.doctor.lives.life_process import TrialLife, live
from ckptkit.tools.doctor.lives.recording import Runs, TrialProbe
from ckptkit.tools.doctor.lives.trace import (
    Begun,
    KilledEvent,
    LifePlan,
    StoppedEvent,
    Unrestored,
    have_ended,
    line_of,
    read_traces,
    trace_of,
)
from ckptkit.tools.doctor.result import DoctorOptions, UnusableScriptError

SCRIPT, Seen = ranked_training.__file__, ranked_training.Run


def killed_in(ranked: Path, life_name: str) -> list[int]:
    traces = read_traces(ranked / "kept" / f"{life_name}.trace")
    return [rank for rank, events in enumerate(traces) if any(isinstance(event, KilledEvent) for event in events)]


def test_lives_lose_one_rank_or_all_and_every_rank_is_compared(ranked, capsys):
    options = DoctorOptions(steps=12, kills=3, time_limit=timedelta(seconds=60))
    code = run_doctor(launcher(2, SCRIPT), options, keep="kept", as_json=True)
    out, said = capsys.readouterr()
    found = json.loads(out or "{}")
    assert out, said
    assert (code, found["exact"], found["ranks"], found["steps"]) == (0, True, 2, 12)
    lives = found["lives"]
    assert [one["killed_rank"] for one in lives] == [None, None, 1, None, 0, None]
    assert killed_in(ranked, lives[2]["name"]) == [1]  # the faults fired, in these ranks
    assert killed_in(ranked, lives[3]["name"])
    assert killed_in(ranked, lives[4]["name"]) == [0]
    kills = [one["killed_after"] or 12 for one in lives]
    assert found["compared"] == 2 * sum(kill - one["began_at"] for kill, one in zip(kills[1:], lives[1:], strict=True))
    assert not (ranked / "run").exists()
    assert not list(ranked.glob("trained-*"))
    storage = open_storage(next((ranked / "kept" / "root-3").iterdir()))  # what lies there afterwards: of both ranks
    assert list_checkpoints(storage)[-1].progress.batches_delivered == lives[-1]["began_at"]
    assert open_wanted(storage, "latest").manifest.world_size == 2


def test_what_one_rank_forgets_names_that_rank(ranked, capsys):
    command = launcher(2, SCRIPT, "forgets")
    assert run_doctor(command, DoctorOptions(steps=6, kills=1), keep=None, as_json=False) == 1
    said = capsys.readouterr().out
    assert "6 micro-steps in each of 2 ranks" in said
    assert "(rank 1)" in said
    found = re.search(
        r"first difference: rank 1: micro-step (\d) .*: accumulators/a\nseen in: .* micro-step (\d)\n", said
    )
    assert int(found[1]) == int(found[2]) + 1


def test_ranks_that_do_not_agree_are_named_before_any_kill(monkeypatch):
    lines = [stepped(step) for step in range(1, 4)]
    other = [*lines[:2], stepped(3, weights="another", accumulators="own")]
    silent = {"monotonic": lambda: 0.0, "begins": lambda words, steps: None, "stepped": lambda steps: None}

    def examined_by_hand(*lives):
        given = iter(lives)
        monkeypatch.setattr(examination, "live", lambda *_, **__: next(given))
        return DoctorExamination(["python"], Path("scratch"), DoctorOptions(steps=3), **silent).run()

    with pytest.raises(UnusableScriptError, match="2 ranks in its first life and 1 in life"):
        examined_by_hand(of_ranks(lines, lines), life(lines))
    with pytest.raises(UnusableScriptError, match=r"rank 1 called .* after 2 micro-steps, and rank 0 after 3"):
        examined_by_hand(of_ranks(lines, lines[:2]))
    report = examined_by_hand(of_ranks(lines, other))
    assert (report.difference.rank, report.difference.step, report.difference.names) == (1, 3, ("weights/w",))
    assert report.diagnosis.code == "not-reproducible"


def test_ranks_that_outlive_a_killed_one_are_ended(ranked):
    """By the doctor, where no launcher does; also those that wait for the dead forever."""
    command = launcher(2, SCRIPT, "clings", leave=True)
    plan = LifePlan(root=str(ranked / "scratch"), trace=str(ranked / "trace"), stop=9, kill=4, kill_ranks=(1,))
    begun = time.monotonic()
    found = live(command, "life", plan, time_limit=timedelta(seconds=60), monotonic=time.monotonic)
    assert time.monotonic() - begun < 30
    assert found.ended_as_planned
    assert [type(rank.events[-1]) is KilledEvent for rank in found.ranks] == [False, True]
    for rank in (0, 1):
        with suppress(ProcessLookupError):
            rank_process = os.pidfd_open(int((ranked / f"pid-{rank}").read_text()))
            readable, _, _ = select.select([rank_process], [], [], 10)  # a SIGKILL may still be on its way
            os.close(rank_process)
            assert readable


def of_ranks(*lines, **options) -> TrialLife:
    parts = [replace(life(own, **options), rank=rank) for rank, own in enumerate(lines)]
    begun = Begun(url="/runs/mine", step=0, checkpoint=None, ranks=len(parts), replicated=("weights/w",))
    return replace(parts[0], events=[begun, *parts[0].events[1:]], rank=None, ranks=tuple(parts))


def test_earliest_rank_with_the_likeliest_cause_is_named():
    same = [stepped(step) for step in (1, 2, 3)]
    first = of_ranks(same, same, same)
    weights = [stepped(1), stepped(2, weights="new"), stepped(3)]
    batch = [stepped(1), stepped(2, batch="new"), stepped(3)]
    assert first_difference(of_ranks(weights, same, batch), first, 3).rank == 2
    assert first_difference(of_ranks(same, weights, same), first, 3).names == ("weights/w",)
    assert first_difference(of_ranks(same, same, same), first, 3) is None
    late = [stepped(1), stepped(2), stepped(3, batch="new")]
    assert first_difference(of_ranks(late, weights, late), first, 3).rank == 1
    assert first_difference(of_ranks(batch, same[:1], same), first, 3).rank == 1  # it did not get there
    losses = [stepped(1), stepped(2, loss="new"), stepped(3)]
    assert first_difference(of_ranks(same, losses, same), first, 3) is None
    assert other_losses(of_ranks(same, losses, same), first, 3) == [2]


def test_life_of_ranks_ended_when_one_died_or_all_stopped(tmp_path):
    trace = tmp_path / "trace"
    begun = Begun(url="/runs/mine", step=0, checkpoint=None, ranks=2)
    alone, stopped, killed = begun.model_copy(update={"ranks": 1}), StoppedEvent(step=1), KilledEvent(step=1)
    unrestored = Unrestored(why="no")
    assert read_traces(trace) == [[]]
    for first, second, ended in (
        (None, None, False),
        (None, [begun, stopped], False),  # the other one has not even begun
        ([begun], [begun, stopped], False),
        ([begun, stopped], [begun, stopped], True),
        ([begun, stopped], [begun], False),
        ([begun, stopped], [begun, killed], True),
        ([alone], None, False),
        ([alone, stopped], None, True),  # a launcher of one rank may wait, too
        ([unrestored], None, True),
        ([unrestored, alone], None, False),  # the script has begun another run
        ([unrestored, begun, stopped], None, False),  # of two ranks
    ):
        for rank, events in enumerate((first, second)):
            trace_of(trace, rank).unlink(missing_ok=True)
            if events is not None:
                trace_of(trace, rank).write_bytes(b"".join(map(line_of, events)))
        assert have_ended(trace) == ended, (first, second)
    trace_of(trace, 1).write_bytes((line_of(begun) + line_of(killed))[:-1])  # a line under way
    trace.write_bytes(line_of(begun))
    assert not have_ended(trace)
    assert [len(events) for events in read_traces(trace)] == [1, 1]


def test_part_of_a_life_that_is_missing_is_no_planned_end():
    lines = [stepped(step) for step in range(1, 4)]
    stopped = of_ranks(lines, lines)
    assert stopped.ended_as_planned  # by itself, with exit code 0
    assert not replace(stopped, exit_code=1).ended_as_planned
    assert not replace(stopped, exit_code=-signal.SIGKILL, planned_kill=3).ended_as_planned  # nobody says so
    dying = [replace(rank, events=[*rank.events, KilledEvent(step=3)]) for rank in stopped.ranks]
    killed = replace(stopped, exit_code=-signal.SIGKILL, planned_kill=3, ranks=(stopped.ranks[0], dying[1]))
    assert killed.ended_as_planned
    assert not replace(killed, planned_kill=4).ended_as_planned
    assert not replace(killed, exit_code=None).ended_as_planned


def test_ranks_meet_while_one_of_them_still_writes(tmp_path):
    """A framework gives up a gather for which a rank is late: none waits in it for another one's storage."""

    def settled(world):
        probe = TrialProbe(Runs(LifePlan(root="root", trace=str(tmp_path / "trace"), stop=1)), "url")
        ends = iter([False, False, True] if world.rank == 0 else [True] * 3)

        def wait(timeout):
            if not next(ends):
                raise NotEndedError

        probe.begin(Seen(world=world), ResumePoint(), wait)
        before = world.gathers
        probe._settle(wait)
        return list(ends), world.gathers - before

    assert results_of(run_ranks(2, settled)) == [([], 3), ([], 3)]
