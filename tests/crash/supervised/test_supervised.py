"""Whole jobs under ``ckptkit run``: what was planted is reported, and the last bits are an uninterrupted run's."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image
from support.small_group import small_control_group

from ckptkit.checkpoint.commit import read_commit
from ckptkit.format.documents import Commit
from ckptkit.format.layout import CheckpointName
from ckptkit.storage import LocalStorage
from ckptkit.testing.state import NumpyRun
from crash.supervised.job import TOTAL
from crash.supervised.supervised import JOB, Supervised, lives_of, stacks_of

EXTENDED = pytest.mark.extended
QUICK = ["hang", "disk-full"]
DEATHS = ["killed", "exception", "crash", "hang", "out-of-memory", "disk-full", "exit", "storage"]


def supervise(folder: Path, plan: list[tuple[str, int]], *options: str) -> Supervised:
    (folder / "plan.json").write_text(json.dumps(plan))
    command = [sys.executable, str(JOB), "root", "plan.json"]
    return Supervised(command, "--hang-after", "1s", "--grace", "5s", *options, folder=folder)


def digest_of_uninterrupted() -> str:
    run = NumpyRun()
    for _ in run.train_until(TOTAL):
        pass
    return run.digest()


@pytest.mark.parametrize("deaths", [QUICK, pytest.param(DEATHS, marks=pytest.mark.extended)], ids=["quick", "all"])
def test_each_death_is_named_and_no_bit_differs(tmp_path: Path, deaths: list[str]) -> None:
    plan = [(kind, 15 + 20 * at) for at, kind in enumerate(deaths)]
    job = supervise(tmp_path, [("escape", 5), *plan])
    assert job.end() == 0, job.stderr
    assert job.stdout.split()[-1] == digest_of_uninterrupted()
    assert [one.cause for one in lives_of(tmp_path / "root")] == [*deaths, "finished"], job.stderr
    assert job.left() == []


def test_dead_data_worker_is_named_and_the_job_goes_on(tmp_path: Path) -> None:
    """Its last save is made, and nothing is trained twice."""
    job = supervise(tmp_path, [("data-worker", 25)])
    assert job.end() == 0, job.stderr
    assert job.stdout.split()[-1] == digest_of_uninterrupted()
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
        if index == 300 and not os.path.exists("died"):
            open("died", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return np.full(8, index, np.float32), np.ones(1, np.float32)
    def __len__(self):
        return 400
data = ds.GeneratorDataset(Rows(), ["x", "y"], shuffle=False, num_parallel_workers=2).batch(2)
loss = nn.WithLossCell(nn.Dense(8, 1), nn.MSELoss())
cell = ck.AccumulationTrainCell(loss, nn.Momentum(loss.trainable_params(), 1e-5, 0.9), 2)
ck.CheckpointCallback("root", save=ck.SaveEvery(optimizer_steps=1)).train(ms.Model(cell), 1, data)
"""


@pytest.mark.extended
def test_data_worker_of_mindspore_that_dies_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ROWS)
    job = Supervised([sys.executable, "train.py"], folder=tmp_path)
    assert job.end() == 0, job.stderr
    assert [one.cause for one in lives_of(tmp_path / "root")] == ["killed", "finished"]
    assert "probably a data worker, was killed by SIGKILL" in lives_of(tmp_path / "root")[0].message


@pytest.mark.extended
def test_metrics_are_written_for_a_monitor(tmp_path: Path) -> None:
    job = supervise(tmp_path, [("killed", 25)], "--metrics", "run.json")
    assert job.end() == 0, job.stderr
    found = json.loads((tmp_path / "run.json").read_text())
    assert found["lives"] == {"killed": 1, "finished": 1}
    lives = lives_of(tmp_path / "root")
    training = sum(one.phases["training"] for one in lives)
    assert found["seconds"]["training"] == pytest.approx(training)


@pytest.mark.extended
def test_times_of_a_life_add_up(tmp_path: Path) -> None:
    job = supervise(tmp_path, [("killed", 25), ("killed", 55)])
    assert job.end() == 0, job.stderr
    first, second, third = lives_of(tmp_path / "root")
    for life in (first, second, third):
        assert sum(life.phases.values()) == pytest.approx(life.seconds, rel=0.01)
    assert (first.last_step, first.committed_step, first.restored, first.signal) == (24, 20, None, "SIGKILL")
    assert (second.restored_step, second.last_step, second.then) == (20, 54, "restart")
    assert second.down_seconds > 0
    assert (third.restored_step, third.last_step, third.then, third.exit_code) == (50, TOTAL, "stop", 0)


def test_bad_batch_stops_after_the_second_death(tmp_path: Path) -> None:
    job = supervise(tmp_path, [("bad-batch", 25)])
    assert job.end() == 65
    causes = [one.cause for one in lives_of(tmp_path / "root")]
    assert causes == ["exception", "code-or-data"]
    assert "lives 1, 2 died" in job.stderr
    assert "micro-step 25 (batch 24 of the run)" in job.stderr
    assert "ValueError: label 11 of 10" in job.stderr


@pytest.fixture
def small_group() -> Iterator[list[str]]:
    with small_control_group(512 << 20) as within:
        yield within


@pytest.mark.extended
def test_kernel_that_finds_no_memory_is_named(tmp_path: Path, small_group: list[str]) -> None:
    (tmp_path / "plan.json").write_text(json.dumps([("more-than-the-group-has", 25)]))
    job = Supervised([sys.executable, str(JOB), "root", "plan.json"], folder=tmp_path, within=small_group)
    assert job.end() == 0, job.stderr
    assert job.stdout.split()[-1] == digest_of_uninterrupted()
    assert [one.cause for one in lives_of(tmp_path / "root")] == ["out-of-memory", "finished"]
    assert "the kernel's OOM killer ended it before the end of micro-step 25 " in job.stderr


@pytest.mark.extended
def test_bad_file_is_named_after_the_second_death(tmp_path: Path) -> None:
    pictures = tmp_path / "pictures" / "a"
    pictures.mkdir(parents=True)
    for at in range(40):
        Image.new("RGB", (8, 8), (at, 0, 0)).save(pictures / f"{at:02}.png")
    (pictures / "31.png").write_bytes(b"no picture")
    job = Supervised([sys.executable, str(JOB.with_name("pictures_job.py")), "root", "pictures"], folder=tmp_path)
    assert job.end() == 65, job.stderr
    assert [one.cause for one in lives_of(tmp_path / "root")] == ["data", "code-or-data"]
    assert "lives 1, 2 died of the same data" in job.stderr
    assert "pictures/a/31.png" in lives_of(tmp_path / "root")[-1].message


@pytest.mark.extended
def test_hang_leaves_its_stacks_in_the_run(tmp_path: Path) -> None:
    job = supervise(tmp_path, [("asleep", 25)])
    assert job.end() == 0, job.stderr
    assert [one.cause for one in lives_of(tmp_path / "root")] == ["hang", "finished"]
    (stack,) = stacks_of(tmp_path / "root")
    assert any("misfortune" in line for line in stack.lines)


def test_sigterm_is_passed_on_and_not_followed_by_a_life(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("[]")
    script = tmp_path / "endless.py"
    script.write_text(
        "import ckptkit as ck\n"
        "from ckptkit.testing.state import NumpyRun\n"
        "run = NumpyRun()\n"
        "with ck.CheckpointManager('root') as manager:\n"
        "    manager.restore(run)\n"
        "    for _ in run.train_until(10**9):\n"
        "        manager.step(run)\n"
        "        if run.batches == 10:\n"
        "            print('trains', flush=True)\n"
    )
    job = Supervised(["sh", "-c", f"{sys.executable} endless.py; exit $?"], folder=tmp_path)
    assert job.process.stdout is not None
    assert job.process.stdout.readline() == "trains\n"
    job.process.send_signal(signal.SIGTERM)
    assert job.end() == 143, job.stderr
    (life,) = lives_of(tmp_path / "root")
    assert (life.cause, life.then) == ("preempted", "stop")
    assert life.committed_step == life.last_step
    assert job.left() == []


@pytest.mark.parametrize(
    ("code", "exit_code", "lives", "says"),
    [
        ("import argparse; argparse.ArgumentParser().parse_args(['--wrong'])", 2, 1, "usage"),
        ("import sys; sys.exit(3)", 75, 2, "exit: the command ended with exit code 3"),
        (
            "raise OSError(28, 'No space left on device')",
            75,
            2,
            "disk-full: OSError: [Errno 28] No space left on device",
        ),
    ],
    ids=["usage", "exit", "full"],
)
def test_script_without_ckptkit_is_judged_by_its_end(tmp_path: Path, code, exit_code, lives, says) -> None:
    job = Supervised([sys.executable, "-c", code], "--lives-without-progress", "2", folder=tmp_path)
    assert job.end() == exit_code
    assert says in job.stderr
    assert job.stderr.count("ended after") == lives
    assert ("shown no ckptkit" in job.stderr) == (lives > 1)


def test_missing_program_is_wrong_usage(tmp_path: Path) -> None:
    job = Supervised(["./no-such-program"], folder=tmp_path)
    assert job.end() == 2
    assert "./no-such-program cannot be started" in job.stderr


@pytest.mark.extended
def test_another_start_is_not_fought_over(tmp_path: Path) -> None:
    script = tmp_path / "two.py"
    script.write_text(
        "import ckptkit as ck\n"
        "from ckptkit.testing.state import NumpyRun\n"
        "run = NumpyRun()\n"
        "with ck.CheckpointManager('root', save=ck.SaveEvery(micro_steps=5)) as manager:\n"
        "    manager.restore(run)\n"
        "    with ck.CheckpointManager('root') as other:\n"
        "        other.restore(NumpyRun(), watch_preemption=False)\n"
        "    for _ in run.train_until(100):\n"
        "        manager.step(run)\n"
        "        manager.wait()\n"
    )
    job = Supervised([sys.executable, "two.py"], folder=tmp_path)
    assert job.end() == 65
    assert "overtaken: StaleAttemptError" in job.stderr


@pytest.mark.extended
def test_lives_of_a_run_in_a_bucket_lie_there(tmp_path: Path, bucket, monkeypatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    root = f"s3://{bucket.name}/run"
    (tmp_path / "plan.json").write_text(json.dumps([("killed", 25)]))
    job = Supervised([sys.executable, str(JOB), root, "plan.json"], folder=tmp_path)
    assert job.end() == 0, job.stderr
    assert [one.cause for one in lives_of(root)] == ["killed", "finished"], job.stderr


STUBBORN = """
import signal, sys
from datetime import timedelta
import ckptkit as ck
from ckptkit.testing.state import NumpyRun
signal.signal(signal.SIGTERM, lambda *_: print("asked", flush=True))
mirror = ck.Mirror(sys.argv[1], every=timedelta(hours=1))
preemption = ck.Preemption(then="off")
manager = ck.CheckpointManager("root", save=ck.SaveEvery(micro_steps=5), mirror=mirror, preemption=preemption)
run = NumpyRun()
manager.restore(run)
for _ in run.train_until(20):
    if (save := manager.step(run)) is not None:
        save.result()
        manager.wait()
print("trained", flush=True)
while True:
    signal.pause()
"""


def test_what_a_killed_training_had_not_uploaded_is_uploaded_at_the_end(tmp_path: Path) -> None:
    """Its mirror gets a checkpoint an hour; it does not hear SIGTERM, and is killed."""
    (tmp_path / "train.py").write_text(STUBBORN)
    job = Supervised([sys.executable, "train.py", str(tmp_path / "far")], "--grace", "1s", folder=tmp_path)
    try:
        assert job.process.stdout is not None
        assert job.process.stdout.readline() == "trained\n"
        before = {one.name for one in (tmp_path / "far" / "checkpoints").iterdir()}
        job.process.send_signal(signal.SIGTERM)
    finally:
        assert job.end() == 143, job.stderr
    newest = max(one.name for one in (tmp_path / "root" / "checkpoints").iterdir())
    assert newest not in before
    assert f"{newest} is uploaded to {tmp_path / 'far'}" in job.stderr
    storage = LocalStorage(tmp_path / "far")
    assert isinstance(read_commit(storage, parsed(newest)), Commit)
    assert job.left() == []


def test_sigterm_while_a_hang_is_ended_lets_no_other_life_begin(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(STUBBORN)
    command = [sys.executable, "train.py", str(tmp_path / "far")]
    job = Supervised(command, "--hang-after", "1s", "--grace", "2s", folder=tmp_path)
    try:
        assert job.process.stdout is not None
        assert [job.process.stdout.readline() for _ in range(2)] == ["trained\n", "asked\n"]
        job.process.send_signal(signal.SIGTERM)
    finally:
        assert job.end(30) == 143, job.stderr
    assert [one.cause for one in lives_of(tmp_path / "root")] == ["hang"]


def parsed(name: str) -> CheckpointName:
    found = CheckpointName.parse(name)
    assert found is not None
    return found


def test_signal_breaks_off_an_upload_that_hangs(tmp_path: Path) -> None:
    """The mirror's folder is a pipe that nobody reads, so that the upload never ends."""
    (tmp_path / "train.py").write_text(STUBBORN)
    job = Supervised([sys.executable, "train.py", str(tmp_path / "far")], "--grace", "1s", folder=tmp_path)
    try:
        assert job.process.stdout is not None
        assert job.process.stdout.readline() == "trained\n"
        document = tmp_path / "far" / "run.json"
        document.unlink()
        os.mkfifo(document)
        job.process.send_signal(signal.SIGTERM)
        assert job.process.stderr is not None
        said = ""
        while "uploading what" not in said:
            said = job.process.stderr.readline()
            assert said
        job.process.send_signal(signal.SIGTERM)
    finally:
        assert job.end(30) == 143, job.stderr
    assert "the upload is broken off" in job.stderr
