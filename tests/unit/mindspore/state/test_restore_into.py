"""A restore that reads straight into the parameters: all of it, or nobody can use what is left."""

import json
import shutil

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn
from support.corrupt import corrupt
from support.memory import contents_of
from support.training import Quiet, accumulation_cell, begin_process, digest, disturb, sums_prefix, tensors
from test_state import Box, manager, trained

import ckptkit as ck
from ckptkit.mindspore.parameters import apply, parameters
from ckptkit.mindspore.state.manager import StateManager
from ckptkit.storage import LocalStorage
from ckptkit.testing.faults import FaultyStorage


@pytest.fixture(params=["view", "copy"])
def way(request, monkeypatch):
    """Into the live memory, and by a copy of each tensor, as where ``asnumpy()`` is not live."""
    if request.param == "copy":
        for module in (apply, parameters):
            monkeypatch.setattr(module, "can_be_live", lambda: False)
    return request.param


def train_cell():
    return accumulation_cell(3, network=Quiet)  # without statistics, so that its cycles can begin again


def saved(root, *calls, box=None):
    """One attempt that saves after so many calls each; gives names and what the parameters were."""
    cell = train_cell()
    state = StateManager(cell, **({"box": box} if box else {}))
    found = []
    with manager(root, keep=ck.KeepLatest(10)) as saves:
        saves.restore(state)
        for count in calls:
            trained(cell, count, cell.counters.micro_steps)
            name = saves.save(state).result()
            found.append((name, tensors(cell), cell.counters))
    return found


def flip(root, name, file, position):
    corrupt(root / "checkpoints" / name / "rank-00000" / f"{file}-000.safetensors", at=position, mask=0x10)


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A run with two checkpoints in mid-cycle, and what they hold."""
    begin_process()
    root = tmp_path_factory.mktemp("template") / "run"
    return root, saved(root, 4, 3, box=Box({"array": np.arange(5)}))


@pytest.fixture
def two(template, root):
    made, checkpoints = template
    shutil.copytree(made, root)
    return root, *checkpoints


FILES = ["weights", "optimizer", "accumulators", "state"]


@pytest.mark.parametrize(("file", "position"), [*zip(FILES, [0, -1, 0, -1], strict=True)])
def test_altered_byte_falls_back_to_older_checkpoint(two, way, file, position, caplog):
    root, (older, bits, counters), (newer, _, _) = two
    flip(root, newer, file, position)
    cell, box = train_cell(), Box()
    point = manager(root).restore(StateManager(cell, box=box))
    assert (point.checkpoint, box.loaded) == (older, 1)
    assert (tensors(cell), cell.counters) == (bits, counters)
    assert f"{file}-000.safetensors" in caplog.text
    trained(cell, 1)


def test_altered_counter_is_corruption(two, caplog):
    """It is looked at before anything is proven by a digest."""
    root, (older, bits, _), (newer, _, _) = two
    shards = json.loads((root / "checkpoints" / newer / "rank-00000.json").read_bytes())["shards"]
    offsets = {one["name"]: one["offset_bytes"] for shard in shards for one in shard["tensors"]}
    for name, file in ((f"{sums_prefix()}divisor", "accumulators"), ("global_step", "optimizer")):
        flip(root, newer, file, offsets[name] + 2)
        cell = train_cell()
        assert manager(root).restore(StateManager(cell, box=Box())).checkpoint == older
        assert tensors(cell) == bits
        assert f"{file}-000.safetensors" in caplog.text
        flip(root, newer, file, offsets[name] + 2)


def refused(cell, state):
    """Nothing can be done with it."""
    calls = [lambda: trained(cell, 1), cell.end_epoch, state.progress, state.capture, state.capture_cycle_start]
    calls += [lambda: state.begin("run"), StateManager(cell).progress, StateManager([nn.Dense(1, 1), cell]).capture]
    for call in calls:
        with pytest.raises(ck.ResumeError, match="half restored from a000001"):
            call()
    return True


def test_failed_restore_blocks_training_until_next_restore(two, root, tmp_path, way):
    _, (older, bits, counters), (newer, _, _) = two
    good = tmp_path / "good"
    shutil.copytree(root, good)
    for name in (older, newer):
        flip(root, name, "accumulators", -1)
    box = Box("mine")
    cell = train_cell()
    trained(cell, 2)  # compiled already
    state = StateManager(cell, box=box)
    counted, weights = cell.counters, tensors(cell)
    saves = manager(root)
    with pytest.raises(ck.CorruptCheckpointError, match="no checkpoint of the run"):
        saves.restore(state)
    assert (cell.counters, box.loaded) == (counted, 0)
    assert way == "copy" or tensors(cell) != weights
    assert refused(cell, state)
    with pytest.raises(ck.ResumeError, match="half restored"):
        manager(tmp_path / "elsewhere").restore(StateManager(cell, box=box))
    for mid_cycle in ("exact", "align", "rewind"):
        with pytest.raises(ck.CorruptCheckpointError):
            manager(root, mid_cycle=mid_cycle).restore(state)
    assert refused(cell, state)
    manager(good, mid_cycle="rewind").restore(state, checkpoint=older)
    assert tensors(cell) == bits
    assert cell.counters == counters
    trained(cell, 1)
    state.capture()


@pytest.mark.parametrize(("file", "size"), [*zip(FILES, [-1, 1, 0, None], strict=True)])
def test_file_of_wrong_size_changes_nothing(two, file, size):
    root, (older, _, _), (newer, _, _) = two
    disturb()
    cell, box = trained(train_cell(), 2), Box("mine")
    before, state = digest(cell), StateManager(cell, box=box)
    for name in (older, newer):
        path = root / "checkpoints" / name / "rank-00000" / f"{file}-000.safetensors"
        whole = path.read_bytes()
        path.unlink()
        if size is not None:
            path.write_bytes(whole[:size] if size < 1 else whole + b"\0")
    with pytest.raises(ck.CorruptCheckpointError):
        manager(root).restore(state)
    assert (digest(cell), box.loaded) == (before, 0)
    state.capture()
    trained(cell, 1)


@pytest.mark.usefixtures("way")
def test_a_boundary_leaves_nothing_of_earlier_sums():
    contents = contents_of(StateManager(train_cell()).capture(), "a000001-c0000000000-m0000")
    cell = train_cell()
    for one in cell.accumulators:
        apply.assign(one, np.ones(one.shape, np.float32), "F32")
    StateManager(cell).apply(contents)
    assert not any(one.asnumpy().any() for one in cell.accumulators)


def test_restoring_again_reads_only_what_was_touched(root, way):
    calls = 4 if way == "view" else 3  # in mid-cycle, or at a boundary
    ((name, bits, _),) = saved(root, calls, box=Box("x"))
    cell, box = train_cell(), Box()
    storage = FaultyStorage(LocalStorage(root))
    state = StateManager(cell, box=box)
    manager(storage).restore(state)
    there = cell.parameters_dict()

    def read_by_restoring_again():
        before = len(storage.calls)
        state.start.undo_changes()
        assert tensors(cell) == bits
        return {call.keys[0].rpartition("/")[2].partition("-")[0] for call in storage.calls[before:]}

    stored = {"weights", "optimizer", *(["accumulators"] if calls == 4 else [])}
    assert read_by_restoring_again() == (set() if way == "view" else stored)
    assert box.loaded == 1, "it has not changed"
    names = "hidden.weight", "moment1.out.bias", cell.accumulators[0].name
    for touched, kind in zip(names, FILES, strict=False):
        there[touched].set_data(ms.Tensor(there[touched].asnumpy() + 1))  # gives it other memory
        box.value = "y"
        assert read_by_restoring_again() == ({kind} & stored if way == "view" else stored)
        assert box.value == "x"
    there["out.bias"].set_data(ms.Tensor(np.ones(3, np.float32)))
    flip(root, name, "weights", -1)
    with pytest.raises(ck.CorruptCheckpointError, match="weights-000"):
        state.start.undo_changes()
    assert refused(cell, state)
    flip(root, name, "weights", -1)
    state.start.undo_changes()
    trained(cell, 2)
    state.start.trained()
    before = tensors(cell)
    state.start.undo_changes()
    assert tensors(cell) == before


def test_run_that_begins_anew_takes_nothing_back_from_another_one():
    cell = train_cell()
    state = StateManager(cell)
    state.begin("runs/one")
    state.apply(contents_of(state.capture(), "a000001-c0000000000-m0000"))
    cell.parameters_dict()["out.bias"].set_data(ms.Tensor(np.full(3, 9, np.float32)))
    ms.set_seed(5)
    state.begin("runs/other")
    before, drawn = tensors(cell), np.random.get_state()[1].tobytes()
    state.start.undo_changes()
    state.start.random_state()
    assert (tensors(cell), np.random.get_state()[1].tobytes()) == (before, drawn)
