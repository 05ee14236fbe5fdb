"""Whole jobs under ``ckptkit run``: what was planted is reported, and the last bits are an uninterrupted run's."""

import itertools
import json
import re
import sys
from collections import Counter
from pathlib import Path

import pytest
from support.runs.grown import run_at

from crash.supervised.job import TOTAL
from crash.supervised.supervised import Supervised, lives_of, planned, stacks_of

DEATHS = ["hang", "disk-full", "killed", "exception", "crash", "out-of-memory", "exit", "storage", "asleep"]


def supervise(folder: Path, plan: list[tuple[str, int]], *options: str) -> Supervised:
    return Supervised(planned(folder, *plan), "--hang-after", "1s", "--grace", "5s", *options, folder=folder)


@pytest.mark.parametrize("deaths", [DEATHS[:2], pytest.param(DEATHS, marks=pytest.mark.extended)], ids=["quick", "all"])
def test_each_death_is_named_and_no_bit_differs(tmp_path: Path, deaths: list[str]) -> None:
    plan = [(kind, 15 + 20 * at) for at, kind in enumerate(deaths)]
    job = supervise(tmp_path, [("escape", 5), *plan], "--metrics", "run.json", "--restart-within", "1h")
    assert job.end() == 0, job.stderr
    assert "--restart-within" not in job.stderr
    assert job.stdout.split()[-1] == run_at(TOTAL).digest()
    lives = lives_of(tmp_path / "root")
    causes = [*("hang" if kind == "asleep" else kind for kind in deaths), "finished"]
    assert [one.cause for one in lives] == causes, job.stderr
    assert job.left() == []
    assert all(sum(one.phases.values()) == pytest.approx(one.seconds, rel=0.01) for one in lives)
    assert all(later.restored_step == earlier.committed_step for earlier, later in itertools.pairwise(lives))
    stacks = [line for stack in stacks_of(tmp_path / "root") for line in stack.lines]
    assert any("misfortune" in line for line in stacks) == ("asleep" in deaths)  # a stopped process tells nothing
    metrics = json.loads((tmp_path / "run.json").read_text())
    assert metrics["lives"] == Counter(causes)
    assert metrics["seconds"]["training"] == pytest.approx(sum(one.phases["training"] for one in lives))


def test_slow_recovery_is_an_error_of_a_job_that_is_done(tmp_path: Path) -> None:
    job = supervise(tmp_path, [("killed", 25)], "--restart-within", "0.001")
    assert job.end() == 1, job.stderr
    assert job.stdout.split()[-1] == run_at(TOTAL).digest()
    took = r"from the last death to the first micro-step of life 2 it took [\d.]+ m?s: --restart-within allows 1 ms"
    assert re.search(rf"\[ckptkit run\] {took} \(exit code 1\)\. By phase: .*starting [\d.]+ m?s", job.stderr)


def test_dead_data_worker_is_named_and_the_job_goes_on(tmp_path: Path) -> None:
    """Its last save is made, and nothing is trained twice."""
    job = supervise(tmp_path, [("data-worker", 25)])
    assert job.end() == 0, job.stderr
    assert job.stdout.split()[-1] == run_at(TOTAL).digest()
    first, second = lives_of(tmp_path / "root")
    assert (first.cause, first.signal, first.committed_step) == ("killed", "SIGTERM", second.restored_step)
    assert (first.exit_code, second.cause) == (143, "finished")
    died = ", probably a data worker, was killed by SIGKILL, probably by the OOM killer"
    assert re.search(rf"\[ckptkit\] SIGTERM after child process \d+{died}: saved a000001-", job.stderr)
    assert re.search(rf"life 1 ended after [\d:]+: killed: SIGTERM after child process \d+{died} ", job.stderr)


ROWS = """
import os, signal
import mindspore as ms, mindspore.dataset as ds, numpy as np
import ckptkit as ck
from mindspore import nn
class Rows:
    def __getitem__(self, index):
        if index in (100, 300) and not os.path.exists(str(index)):
            open(str(index), "w").close()
            if index == 100:
                signal.pause()
            os.kill(os.getpid(), signal.SIGKILL)
        return np.full(8, index, np.float32), np.ones(1, np.float32)
    def __len__(self):
        return 400
data = ds.GeneratorDataset(Rows(), ["x", "y"], shuffle=False, num_parallel_workers=2).batch(2)
loss = nn.WithLossCell(nn.Dense(8, 1), nn.MSELoss())
ms.set_seed(1)
cell = ck.AccumulationTrainCell(loss, nn.Momentum(loss.trainable_params(), 1e-5, 0.9), 2)
ck.CheckpointCallback("root", save=ck.SaveEvery(optimizer_steps=1)).train(ms.Model(cell), 1, data)
"""


def test_bad_batch_stops_after_the_second_death(tmp_path: Path) -> None:
    job = supervise(tmp_path, [("bad-batch", 25)], "--restart-within", "0.001")  # which is for a job that is done
    assert job.end() == 65
    causes = [one.cause for one in lives_of(tmp_path / "root")]
    assert causes == ["exception", "code-or-data"]
    assert "lives 1, 2 died" in job.stderr
    assert "micro-step 25 (batch 24 of the run)" in job.stderr
    assert "ValueError: label 11 of 10" in job.stderr


def test_script_without_ckptkit_is_judged_by_its_end(tmp_path: Path) -> None:
    (tmp_path / "input").write_text("for every life")
    within = ["sh", "-c", 'exec "$@" < input', "sh"]
    full = "input() == 'for every life' and exec('raise OSError(28, \"No space left on device\")')"
    for code, exit_code, lives, says in (
        ("import argparse; argparse.ArgumentParser().parse_args(['--wrong'])", 2, 1, "usage"),
        (full, 75, 2, "disk-full: OSError: [Errno 28] No space left on device"),
    ):
        job = Supervised([sys.executable, "-c", code], "--lives-without-progress", "2", folder=tmp_path, within=within)
        assert job.end() == exit_code
        assert says in job.stderr.rpartition(f"life {lives} ended")[2]
        assert job.stderr.count("ended after") == lives
        assert ("shown no ckptkit" in job.stderr) == (lives > 1)


@pytest.mark.extended
def test_data_workers_of_mindspore_that_hang_or_die_are_named(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ROWS)
    job = Supervised([sys.executable, "train.py"], "--hang-after", "8s", "--grace", "8s", folder=tmp_path)
    assert job.end(300) == 0, job.stderr
    lives = lives_of(tmp_path / "root")
    assert [one.cause for one in lives] == ["hang", "killed", "finished"], job.stderr
    assert "probably a data worker, was killed by SIGKILL" in lives[1].message
    assert job.left() == []
