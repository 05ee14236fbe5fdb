"""Whatever trains, on whatever data, a killed and resumed run goes through the bits of one without ckptkit."""

import pytest

from ckptkit.run.catalog import list_checkpoints
from ckptkit.storage import open_storage
from exactness.cells.data import DATA
from exactness.cells.kinds import KINDS, SCALED, WITH_MODEL, key
from exactness.jobs.lives import assert_continues, assert_equal, killed, live
from exactness.jobs.parts import EPOCHS, STEPS, K

ACCUMULATING = ("boost.GradientAccumulation", "own train step", "ckptkit.nn.Dropout")


def killed_and_resumed(folder, kind, mode, data, kills):
    """A chain of processes, of which each but the last one dies before its last micro-step is saved."""
    name = key(kind, data)
    whole = live(name, mode, folder / "whole", alone=True)
    whole.ended.expect(0)
    assert [at for _, at in whole.steps] == [*range(1, EPOCHS * STEPS + 1)]
    assert len({leaves[".batch.0"] for leaves in whole.steps.values()}) >= STEPS
    lives = [*killed(name, mode, folder / "killed", kills), live(name, mode, folder / "killed")]
    lives[-1].ended.expect(0)
    assert_continues(whole, lives[-1])
    committed = 0
    for at, life in zip([*kills, EPOCHS * STEPS], lives, strict=True):
        begun = min(number for _, number in life.steps)
        assert committed - 1 <= begun - 1 <= committed  # the last save before a kill may have died with it
        assert [number for _, number in life.steps] == [*range(begun, at + 1)]
        assert_equal(whole, life)
        committed = at - 1
    saved = [info.progress for info in list_checkpoints(open_storage(folder / "killed" / "run"))]
    cycle = divmod(EPOCHS * STEPS, K if kind in ACCUMULATING else 1)
    assert cycle in {(progress.cycles, progress.micro_step) for progress in saved}
    if kind in SCALED:
        finite = {leaves[".outputs.1"] for leaves in whole.steps.values()}
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
