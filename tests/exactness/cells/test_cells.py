"""Whatever trains, a killed and resumed run goes through the same bits as one that nobody disturbed."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from support.process import run_python

import ckptkit
from ckptkit.run.catalog import list_checkpoints
from ckptkit.storage import open_storage
from exactness.cells.data import DATA
from exactness.cells.job import MICRO_STEPS, Job, K
from exactness.cells.kinds import KINDS, WITH_MODEL

ACCUMULATING = ("boost.GradientAccumulation", "own train step", "ckptkit.nn.Dropout", "AccumulationTrainCell")


def run(job: Job) -> dict[str, dict[int, dict]]:
    """Run one process, see that it ended as planned, and return its trace: a line per micro-step, by kind."""
    folder = Path(job.trace + ".cwd")  # MindSpore litters it
    folder.mkdir(parents=True)
    paths = [str(Path(__file__).parents[2]), str(Path(ckptkit.__file__).parents[1])]
    environment = {"GLOG_v": "3", "PYTHONPATH": os.pathsep.join(paths)}
    done = run_python("-m", "exactness.cells.training", job.dumps(), folder=folder, environment=environment)
    done.expect(0 if job.until is None else -signal.SIGKILL)
    trace: dict[str, dict[int, dict]] = {}
    for line in map(json.loads, Path(job.trace).read_text().splitlines()):
        assert trace.setdefault(line["kind"], {}).setdefault(line["at"], line) is line, "a micro-step was traced twice"
    assert sorted(trace) == sorted(job.kinds)
    return trace


def assert_continues(reference: dict[int, dict], trace: dict[int, dict], begin: int, end: int) -> None:
    assert list(trace) == list(range(begin + 1, end + 1))
    for at, line in trace.items():
        expected = reference[at]["leaves"]
        differing = [name for name in expected if line["leaves"].get(name) != expected[name]]
        assert not differing, (
            f"micro-step {at}: {differing[0]} is the first of {len(differing)} that differ: {differing}"
        )
        assert line["leaves"].keys() == expected.keys()


def names(root: Path) -> set[tuple[int, int]]:
    """Cycles ended and micro-step of every checkpoint."""
    found = [info.progress for info in list_checkpoints(open_storage(root))]
    return {(one.cycles, one.micro_step) for one in found}


def killed_and_resumed(folder: Path, mode: str, data: str, kinds: tuple[str, ...], kills: list[int]) -> None:
    reference = run(Job(mode, kinds, data, None, str(folder / "reference")))
    for kind in kinds:
        assert list(reference[kind]) == list(range(1, MICRO_STEPS + 1))
        assert len({line["leaves"]["batch.0"] for line in reference[kind].values()}) == MICRO_STEPS
    done = 0
    for number, until in enumerate([*kills, None]):
        trace = run(Job(mode, kinds, data, str(folder / "runs"), str(folder / f"trace-{number}"), until))
        end = until or MICRO_STEPS
        for kind in kinds:
            try:
                assert_continues(reference[kind], trace[kind], done, end)
                cycle = divmod(end, K if kind in ACCUMULATING else 1)
                assert cycle in names(folder / "runs" / str(list(KINDS).index(kind)))
            except AssertionError as error:
                raise AssertionError(f"{kind}, from {done} to {end} in {mode} mode: {error}") from error
        done = end
    assert_overflowed(reference)


def assert_overflowed(reference: dict[str, dict[int, dict]]) -> None:
    """See that the kinds with loss scaling skipped some updates and not others, before and after the kill."""
    for kind, place, bad in (("TrainOneStepWithLossScaleCell", 1, "1.0"), ("functional loop", 1, "0.0")):
        skipped = [at for at, line in reference.get(kind, {}).items() if line["outputs"][place] == bad]
        if kind in reference:
            assert skipped, kind
            assert len(skipped) < MICRO_STEPS - 3, (kind, skipped)


def kinds_for(data: str) -> tuple[str, ...]:
    return tuple(kind for kind in KINDS if kind not in WITH_MODEL or not DATA[data].needs_own_loop)


# Each kind with each mode, each kind with data that is positioned at once and with data that is replayed, and the
# data of one's own loops with every loop.
# The default suite has half of the kinds, each in one of the modes.
@pytest.mark.parametrize(
    ("mode", "data", "until", "share"),
    [
        ("graph", "augmented", 10, slice(0, None, 8)),
        ("pynative", "generator", 11, slice(5, None, 8)),
        pytest.param("graph", "augmented", 10, slice(0, None, 2), marks=pytest.mark.extended),
        pytest.param("pynative", "generator", 11, slice(1, None, 2), marks=pytest.mark.extended),
        pytest.param("graph", "augmented", 10, slice(1, None, 2), marks=pytest.mark.extended),
        pytest.param("pynative", "generator", 11, slice(0, None, 2), marks=pytest.mark.extended),
    ],
)
def test_kill_mid_cycle_in_second_epoch_resumes_exactly(tmp_path, mode, data, until, share):
    killed_and_resumed(tmp_path, mode, data, kinds_for(data)[share], [until])


@pytest.mark.extended
@pytest.mark.parametrize("data", [name for name, one in DATA.items() if one.needs_own_loop])
def test_loops_over_python_iterables_are_killed(tmp_path, data):
    killed_and_resumed(tmp_path, "pynative", data, kinds_for(data), [7, 10])


@pytest.mark.extended
@pytest.mark.parametrize("data", list(DATA))
@pytest.mark.parametrize("mode", ["graph", "pynative"])
def test_killed_again_and_again(tmp_path, mode, data):
    """At and beside the ends of cycles and of the epoch."""
    killed_and_resumed(tmp_path, mode, data, kinds_for(data), [1, 3, 5, 7, 8, 13])
