"""Ranks under ``ckptkit run -- msrun``: one is killed, one is stopped, all are killed, and no bit differs."""

import subprocess
from pathlib import Path

import pytest
from crash.supervised.supervised import Supervised, lives_of
from support.hosts.running import LIMIT, environment
from support.process import python

from multirank.msrun.launch import command_of

JOB = Path(__file__).with_name("supervised_job.py")


def command(ranks: int, folder: Path, *plan: str) -> list[str]:
    folder.mkdir()
    return command_of(ranks, JOB, folder, *plan)


@pytest.mark.extended
def test_ranks_that_die_are_named_and_no_bit_differs(tmp_path: Path, monkeypatch) -> None:
    ranks = 2
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("PYTHONFAULTHANDLER")
    plan = ["1:22:SIGKILL", "0:62:SIGSTOP", "all:102:SIGKILL", "1:142:SIGCHLD"]
    job = Supervised(command(ranks, tmp_path / "job", *plan), "--hang-after", "5s", "--grace", "10s", folder=tmp_path)
    assert job.end(4 * LIMIT.total_seconds()) == 0, job.stderr
    lives = lives_of(tmp_path / "job" / "run")
    assert [life.cause for life in lives] == ["killed", "hang", "killed", "killed", "finished"], job.stderr
    assert [lives[at].rank for at in (0, 1, 3)] == [1, 0, 1]
    assert lives[3].committed_step == lives[3].last_step  # all ranks saved
    assert [life.ranks for life in lives] == [ranks] * 5
    assert job.left() == []
    plain = command(ranks, tmp_path / "plain")
    subprocess.run(plain, cwd=tmp_path, env=environment(), check=True, timeout=LIMIT.total_seconds())
    roots = [tmp_path / name / "run" for name in ("job", "plain")]
    python("-m", "ckptkit", "diff", *roots, "--exit-code", timeout=120)
