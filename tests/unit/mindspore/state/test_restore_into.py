"""A restore that reads straight into the parameters: all of it, or nobody can use what is left."""

from __future__ import annotations

import functools
import json
import os
import shutil
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn
from support.corrupt import corrupt
from support.memory import contents_of
from support.training import Mlp, accumulation_cell, adam, begin_process, digest, disturb, sums_prefix, tensors
from test_state import Box, batch, manager, with_mixed

import ckptkit as ck
from ckptkit.mindspore.parameters import apply, parameters
from ckptkit.mindspore.state.manager import StateManager
from ckptkit.storage import LocalStorage
from ckptkit.testing.faults import Fault, FaultyStorage


@pytest.fixture(params=["view", "copy"])
def way(request, monkeypatch):
    """Into the live memory, and by a copy of each tensor, as where ``asnumpy()`` is not live."""
    if request.param == "copy":
        for module in (apply, parameters):
            monkeypatch.setattr(module, "can_be_live", lambda: False)
    return request.param


def trained(cell, calls, first=0):
    cell.set_train()
    for seed in range(first, first + calls):
        cell(*batch(seed))
    return cell


def saved(root, *calls, box=None):
    """One attempt that saves after so many calls each; gives names and what the parameters were."""
    cell = accumulation_cell(3)
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
    corrupt(Path(root) / "checkpoints" / name / "rank-00000" / f"{file}-000.safetensors", at=position, mask=0x10)


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


@pytest.mark.covering(1)
@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("position", [0, -1])
@pytest.mark.parametrize("file", FILES)
def test_altered_byte_falls_back_to_older_checkpoint(two, file, position, caplog):
    root, (older, bits, counters), (newer, _, _) = two
    flip(root, newer, file, position)
    cell, box = accumulation_cell(3), Box()
    point = manager(root).restore(StateManager(cell, box=box))
    assert point.checkpoint == older
    assert tensors(cell) == bits
    assert cell.counters == counters
    assert box.loaded == 1
    assert f"{file}-000.safetensors" in caplog.text
    trained(cell, 1)


def test_altered_counter_is_corruption(two, caplog):
    """It is looked at before anything is proven by a digest."""
    root, (older, bits, _), (newer, _, _) = two
    path = root / "checkpoints" / newer / "rank-00000.json"
    shards = json.loads(path.read_bytes())["shards"]
    offsets = {one["name"]: one["offset_bytes"] for shard in shards for one in shard["tensors"]}
    for name, file in ((f"{sums_prefix()}divisor", "accumulators"), ("global_step", "optimizer")):
        caplog.clear()
        flip(root, newer, file, offsets[name] + 2)
        cell = accumulation_cell(3)
        assert manager(root).restore(StateManager(cell, box=Box())).checkpoint == older
        assert tensors(cell) == bits
        assert f"{file}-000.safetensors" in caplog.text
        flip(root, newer, file, offsets[name] + 2)


def refused(cell, state):
    """Nothing can be done with it."""
    for attempt in (
        lambda: trained(cell, 1),
        cell.end_epoch,
        state.progress,
        state.capture,
        state.capture_cycle_start,
        lambda: state.begin("runs/vit"),
        StateManager(cell).progress,
        StateManager([nn.Dense(1, 1), cell]).capture,
    ):
        with pytest.raises(ck.ResumeError, match="half restored from a000001"):
            attempt()
    return True


@pytest.mark.usefixtures("way")
def test_failed_restore_blocks_training_until_next_restore(two, root, tmp_path):
    _, (older, bits, counters), (newer, _, _) = two
    good = tmp_path / "good"
    shutil.copytree(root, good)
    for name in (older, newer):
        flip(root, name, "accumulators", -1)
    box = Box("mine")
    cell = accumulation_cell(3)
    trained(cell, 2)  # compiled already
    state = StateManager(cell, box=box)
    counted, weights = cell.counters, tensors(cell)
    saves = manager(root)
    with pytest.raises(ck.CorruptCheckpointError, match="no checkpoint of the run"):
        saves.restore(state)
    assert (cell.counters, box.loaded) == (counted, 0)
    assert tensors(cell) != weights
    assert refused(cell, state)
    with pytest.raises(ck.ResumeError, match="half restored"):
        manager(tmp_path / "elsewhere").restore(StateManager(cell, box=box))
    for mid_cycle in ("exact", "align"):
        with pytest.raises(ck.CorruptCheckpointError):
            manager(root, mid_cycle=mid_cycle).restore(state)
    assert refused(cell, state)
    manager(good).restore(state, checkpoint=older)
    assert tensors(cell) == bits
    assert cell.counters == counters
    trained(cell, 1)
    state.capture()
    for name in (older, newer):
        flip(good, name, "weights", -1)
    with pytest.raises(ck.CorruptCheckpointError):
        manager(good).restore(state)
    assert refused(cell, state)
    cell.load_counters(cell.counters)  # says that all is well
    trained(cell, 1)


def test_half_restored_rewinding_training_can_be_restored(root, tmp_path):
    class Plain(Mlp):
        def __init__(self):
            super().__init__()
            self.norm = nn.Dense(8, 8)

    cell = accumulation_cell(3, network=Plain)
    state = StateManager(cell)
    with manager(root, mid_cycle="rewind") as saves:
        saves.restore(state)
        trained(cell, 3)
        name = saves.save(state).result()
    bits = tensors(cell)
    shutil.copytree(root, tmp_path / "good")
    flip(root, name, "optimizer", -1)
    again = accumulation_cell(3, network=Plain)
    state = StateManager(again)
    with pytest.raises(ck.CorruptCheckpointError):
        manager(root, mid_cycle="rewind").restore(state)
    with pytest.raises(ck.ResumeError, match="half restored"):
        trained(again, 1)
    manager(tmp_path / "good", mid_cycle="rewind").restore(state)
    assert tensors(again) == bits


def test_storage_failure_leaves_mark_until_new_start(two):
    root, _, (_, bits, counters) = two
    cell = accumulation_cell(3)
    fault = Fault("error", operations={"read_into"}, key="*optimizer*", nth=2)
    storage = FaultyStorage(LocalStorage(root), [fault])
    with pytest.raises(ck.StorageError):
        manager(storage).restore(StateManager(cell, box=Box()))
    assert fault.fired == 1
    assert refused(cell, StateManager(cell))
    manager(storage).restore(StateManager(cell, box=Box()))
    assert (tensors(cell), cell.counters) == (bits, counters)


def test_mark_of_foreign_cell_reaches_every_manager(root, tmp_path):
    """Every StateManager of that cell."""

    def make():
        network = Mlp()
        return nn.TrainOneStepCell(network, adam(network.trainable_params()))

    cell = make()
    state = StateManager(cell)
    with manager(root) as saves:
        saves.restore(state)
        trained(cell, 2)
        state.count_delivered(2)
        name = saves.save(state).result()
    bits = tensors(cell)
    shutil.copytree(root, tmp_path / "good")
    flip(root, name, "optimizer", -1)
    cell = make()
    with pytest.raises(ck.CorruptCheckpointError):
        manager(root).restore(StateManager(cell))
    for other in (StateManager(cell), StateManager([nn.Dense(1, 1), cell])):
        for use in (other.progress, other.capture, functools.partial(other.begin, "runs/vit")):
            with pytest.raises(ck.ResumeError, match="this TrainOneStepCell are half restored"):
                use()
    manager(tmp_path / "good").restore(StateManager(cell))
    assert tensors(cell) == bits
    StateManager([nn.Dense(1, 1), cell]).progress()


def shorten(path):
    os.truncate(path, path.stat().st_size - 1)


def lengthen(path):
    os.truncate(path, path.stat().st_size + 1)


def empty(path):
    os.truncate(path, 0)


@pytest.mark.parametrize(("file", "change"), list(zip(FILES, [shorten, lengthen, empty, os.unlink], strict=True)))
def test_file_of_wrong_size_changes_nothing(two, file, change):
    root, (older, _, _), (newer, _, _) = two
    for name in (older, newer):
        change(root / "checkpoints" / name / "rank-00000" / f"{file}-000.safetensors")
    disturb()
    cell, box = trained(accumulation_cell(3), 2), Box("mine")
    before = digest(cell)
    state = StateManager(cell, box=box)
    with pytest.raises(ck.CorruptCheckpointError):
        manager(root).restore(state)
    assert (digest(cell), box.loaded) == (before, 0)
    state.capture()
    trained(cell, 1)


def test_every_kind_of_parameter_arrives_in_either_way(way):
    begin_process(mode="graph" if way == "view" else "pynative")
    cell = with_mixed(1).set_train()
    cell(ms.Tensor(np.ones((4, 4), np.float32)))
    contents = contents_of(StateManager(cell).capture(), "a000001-c0000000001-m0001")
    again = with_mixed(2)
    kinds = {one.name: (one.dtype, one.shape) for one in again.get_parameters()}
    memory = {one.name: one.asnumpy() for one in again.get_parameters()}
    assert tensors(again) != tensors(cell)
    StateManager(again).apply(contents)
    assert tensors(again) == tensors(cell)
    assert {one.name: (one.dtype, one.shape) for one in again.get_parameters()} == kinds
    assert {name: one.tobytes() for name, one in memory.items()} == tensors(again)  # still the same storage


@pytest.mark.usefixtures("way")
def test_a_boundary_leaves_nothing_of_earlier_sums():
    contents = contents_of(StateManager(accumulation_cell(3)).capture(), "a000001-c0000000000-m0000")
    cell = accumulation_cell(3)
    for one in cell.accumulators:
        apply.assign(one, np.ones(one.shape, np.float32), "F32")
    StateManager(cell).apply(contents)
    assert not any(one.asnumpy().any() for one in cell.accumulators)


def test_on_cpu_every_parameter_is_live():
    assert apply.can_be_live()
    for cell in (with_mixed(1), accumulation_cell(3), trained(accumulation_cell(3), 4)):
        for one in cell.get_parameters():
            live = apply.live_bytes(one)
            assert live is not None, one.name
            assert len(live) == one.asnumpy().nbytes


class Stub:
    """A tensor whose memory ``array`` is, and which shows what ``gives`` makes of it."""

    def __init__(self, array, gives):
        self.array, self.gives = array, gives

    def asnumpy(self):
        return self.gives(self.array)

    def data_ptr(self):
        return self.array.ctypes.data


def read_only(array):
    view = array.view()
    view.flags.writeable = False
    return view


def test_live_memory_is_detected_by_behaviour():
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    for gives in (np.copy, np.asfortranarray, read_only):
        assert apply.live_bytes(Stub(array, gives)) is None, gives
    assert len(apply.live_bytes(Stub(array, lambda array: array.view()))) == array.nbytes


@pytest.mark.parametrize(("mode", "calls_before"), [("graph", 1), ("pynative", 5)])
def test_compiled_graphs_see_what_was_restored(way, mode, calls_before):
    begin_process(mode=mode)
    whole = trained(accumulation_cell(3), 5)
    contents = contents_of(StateManager(whole).capture(), "a000001-c0000000001-m0002")
    trained(whole, 6, first=5)
    begin_process(mode=mode)
    resumed = trained(accumulation_cell(3), calls_before, first=77)
    StateManager(resumed).apply(contents)
    trained(resumed, 6, first=5)
    assert tensors(resumed) == tensors(whole)
    assert resumed.counters == whole.counters


@pytest.mark.parametrize("calls", [3, 4], ids=["boundary", "mid-cycle"])
def test_restoring_again_reads_only_what_was_touched(root, calls, way):
    ((_, bits, _),) = saved(root, calls, box=Box("x"))
    cell, box = accumulation_cell(3), Box()
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
    assert box.loaded == 2
    for name, kind in (
        ("hidden.weight", "weights"),
        ("moment1.out.bias", "optimizer"),
        (cell.accumulators[0].name, "accumulators"),
    ):
        there[name].set_data(ms.Tensor(there[name].asnumpy() + 1))  # gives it other memory
        assert read_by_restoring_again() == ({kind} & stored if way == "view" else stored)
    trained(cell, 2)
    state.start.trained()
    before = tensors(cell)
    state.start.undo_changes()
    assert tensors(cell) == before


def test_run_that_begins_anew_takes_nothing_back_from_another_one():
    begin_process()
    cell = accumulation_cell(3)
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


def test_failed_restore_again_leaves_mark(root):
    ((name, _, _),) = saved(root, 4)
    cell = accumulation_cell(3)
    state = StateManager(cell)
    manager(root).restore(state)
    flip(root, name, "weights", -1)
    state.start.undo_changes()  # nothing was touched, so nothing is read
    state.progress()
    cell.parameters_dict()["out.bias"].set_data(ms.Tensor(np.ones(3, np.float32)))
    with pytest.raises(ck.CorruptCheckpointError, match="weights-000"):
        state.start.undo_changes()
    assert refused(cell, state)
    flip(root, name, "weights", -1)
    state.start.undo_changes()
    trained(cell, 1)
