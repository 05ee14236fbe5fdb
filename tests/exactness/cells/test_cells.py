"""Whatever trains, on whatever data, a killed and resumed run goes through the bits of one without ckptkit."""

import json
import signal

import pytest
from support.process import run_python

from ckptkit.run.catalog import list_checkpoints
from ckptkit.storage import open_storage
from exactness.cells.data import DATA, EPOCHS, STEPS, K
from exactness.cells.kinds import KINDS, SCALED, WITH_MODEL

ACCUMULATING = ("boost.GradientAccumulation", "own train step", "ckptkit.nn.Dropout")


def live(training, folder, kill=0, *, alone=False):
    """The digests of each micro-step of one start of a training below ``folder``; ``alone`` without ckptkit."""
    number = sum(1 for _ in folder.glob("trace-*"))
    trace, work = folder / f"trace-{number}", folder / f"cwd-{number}"
    work.mkdir(parents=True)
    arguments = ("-m", "exactness.cells.kinds", *training, "" if alone else str(folder), str(trace), str(kill))
    run_python(*arguments, folder=work).expect(-signal.SIGKILL if kill else 0)
    return {line["at"]: line["leaves"] for line in map(json.loads, trace.read_text().splitlines())}


def killed_and_resumed(folder, kind, mode, data, kills):
    """A chain of processes, of which each but the last one dies before its last micro-step is saved."""
    whole = live((kind, mode, data), folder / "whole", alone=True)
    assert [*whole] == [*range(1, EPOCHS * STEPS + 1)]
    assert len({leaves[".batch.0"] for leaves in whole.values()}) >= STEPS
    committed = 0
    for kill in [*kills, 0]:
        steps = live((kind, mode, data), folder / "killed", kill)
        begun, last = min(steps), kill or EPOCHS * STEPS
        assert committed - 1 <= begun - 1 <= committed  # the last save before a kill may have died with it
        assert [*steps] == [*range(begun, last + 1)]
        for at, leaves in steps.items():
            differing = [leaf for leaf in whole[at] | leaves if leaves.get(leaf) != whole[at].get(leaf)]
            assert not differing, (at, differing)
        committed = last - 1
    saved = [info.progress for info in list_checkpoints(open_storage(folder / "killed" / "run"))]
    cycle = divmod(EPOCHS * STEPS, K if kind in ACCUMULATING else 1)
    assert cycle in {(progress.cycles, progress.micro_step) for progress in saved}
    if kind in SCALED:
        finite = {leaves[".outputs.1"] for leaves in whole.values()}
        assert len(finite) == 2, "some updates were skipped, and others were not"


@pytest.mark.parametrize(
    ("kind", "mode", "data"),
    [
        ("Model(network, loss, optimizer)", "graph", "augmented"),
        ("ckptkit.nn.Dropout", "graph", "slices"),
        ("own train step", "pynative", "generator"),
    ],
)
def test_kill_mid_cycle_in_second_epoch_resumes_exactly(tmp_path, kind, mode, data):
    killed_and_resumed(tmp_path, kind, mode, data, [STEPS + 4])


def usable(kind):
    return [name for name, data in DATA.items() if kind not in WITH_MODEL or not data.needs_own_loop]


def test_loops_over_python_iterables_are_killed(tmp_path):
    killed_and_resumed(tmp_path, "functional loop", "pynative", "loader", [STEPS, STEPS + 4])


@pytest.mark.extended
@pytest.mark.parametrize("mode", ["graph", "pynative"])
@pytest.mark.parametrize(
    ("kind", "data"), [(kind, usable(kind)[number % len(usable(kind))]) for number, kind in enumerate(KINDS)]
)
def test_killed_again_and_again(tmp_path, mode, kind, data):
    """At and beside the ends of cycles and of the epoch."""
    killed_and_resumed(tmp_path, kind, mode, data, [2, 4, 6, STEPS, STEPS + 1, STEPS + 2, EPOCHS * STEPS])
