"""Buffers of cells: stored and restored like parameters, and named where a compiled graph would not see them."""

import functools

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops
from mindspore.common import np_dtype
from support.training import (
    SIZE,
    Job,
    Mlp,
    accumulation_cell,
    adam,
    begin_process,
    both_modes,
    survived,
    tensors,
)
from unit.mindspore.state.test_state import manager, trained

import ckptkit as ck
from ckptkit.mindspore.state.manager import StateManager
from ckptkit.tools.interchange import export_weights, import_weights


class Remembering(Mlp):
    """Subtracts a running mean, which is a buffer, and counts in another one that no state_dict has."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", ms.Tensor(np.zeros(6, np.float32)))
        self.register_buffer("calls", ms.Tensor(np.zeros((), np.int64)), persistent=False)
        self.hidden.register_buffer("table", ms.Tensor(np.arange(4, dtype=np.float32)))
        self.register_buffer("nothing", None)

    def construct(self, x, y):
        self.mean.copy_(self.mean * 0.9 + x.mean(0) * 0.1)
        self.calls.copy_(self.calls + 1)
        return super().construct(x - self.mean, y)


class Named(Mlp):
    def __init__(self, **buffers):
        super().__init__()
        for name, value in buffers.items():
            self.register_buffer(name, ms.Tensor(value))


def remembering(**options):
    return accumulation_cell(network=Remembering, **options)


def with_buffers(**buffers):
    return accumulation_cell(network=functools.partial(Named, **buffers))


def saved(root, cells, calls=0, **stateful):
    state = StateManager(cells, **stateful)
    with manager(root) as saves:
        saves.restore(state)
        trained(cells, calls)
        saves.save(state).result()
    return cells


def leaves(state):
    return {leaf.name: leaf for leaf in state.capture().leaves if leaf.role != "state"}


def test_interrupted_run_has_every_bit_of_buffers(root, shown):
    expected = Job(cell=remembering).uninterrupted(2).steps
    found, job = survived(root, [3, SIZE + 2], epochs=2, cell=remembering)
    assert found == expected
    assert int(job.cell.network.calls.asnumpy()) == 2 * SIZE
    assert "Training changes the buffers" not in shown(), "in PYNATIVE they may"


def test_every_train_cell_names_buffers_alike():
    network = Remembering()
    names = {name for name, _ in network.named_buffers()}
    assert names == {"mean", "calls", "hidden.table"}
    foreign = nn.TrainOneStepCell(network, adam(network.trainable_params()))
    foreign.register_buffer("count", ms.Tensor(np.full((), 7, np.int64)))  # of its own, beside those of its network
    for cells in (remembering(), foreign, [Remembering()]):
        found = leaves(StateManager(cells))
        assert {(found[name].role, found[name].lifetime) for name in names} == {("weights", "micro")}
    assert leaves(StateManager(foreign))["count"].array == 7


def of_every_kind(seed):
    bits = np.random.default_rng(seed).integers(0, 2, 1 << 17, dtype=np.uint8)
    kinds = {"brain": (np_dtype.bfloat16, (5, 7)), "count": (np.int64, ()), "mask": (np.bool_, (6,))}
    kinds |= {"empty": (np.float32, (0, 3)), "large": (np.float32, (160, 160))}
    sizes = {name: int(np.prod(shape)) * np.dtype(kind).itemsize for name, (kind, shape) in kinds.items()}
    return {name: bits[: sizes[name]].view(kind).reshape(shape) for name, (kind, shape) in kinds.items()}


@both_modes
def test_every_kind_of_buffer_is_restored_in_place(root, mode, shown):
    begin_process(mode=mode)
    cell = saved(root, with_buffers(**of_every_kind(1)), 1)
    again = trained(with_buffers(**of_every_kind(2)), 1)
    objects = {name: (id(one), one.data_ptr()) for name, one in again.network.named_buffers()}
    assert tensors(again) != tensors(cell)
    fresh = with_buffers(**of_every_kind(2))
    manager(root).restore(StateManager(fresh))
    assert tensors(fresh) == tensors(cell)
    manager(root).restore(StateManager(again))
    assert tensors(again) == tensors(cell)
    assert {name: (id(one), one.data_ptr()) for name, one in again.network.named_buffers()} == objects
    assert "Training changes the buffers" not in shown()


def test_other_buffers_are_refused_and_named(root):
    saved(root, with_buffers(one=np.zeros(2, np.float32), two=np.zeros(1, np.int32)))
    other = with_buffers(one=np.ones(3, np.float32), two=np.ones(1, np.int32))
    before = tensors(other)
    with pytest.raises(ck.StateMismatchError, match=r"one: the checkpoint has F32 \[2\], this training has F32 \[3\]"):
        manager(root).restore(StateManager(other))
    assert tensors(other) == before
    other = with_buffers(one=np.ones(2, np.float32), three=np.ones(1, np.int32))
    with pytest.raises(ck.StateMismatchError, match=r"(?s)two.*three"):
        manager(root).restore(StateManager(other))


def test_what_is_registered_later_is_stored(root):
    cell = with_buffers(table=np.zeros(2, np.float32))
    state = StateManager(cell)
    assert leaves(state)["table"].shape == (2,)
    cell.network.register_buffer("table", ms.Tensor(np.ones(5, np.float32)))
    cell.network.norm.register_buffer("late", ms.Tensor(np.ones((), np.float32)))
    found = leaves(state)
    assert found["table"].array.tolist() == [1] * 5
    assert found["norm.late"].array == 1
    cell.network.register_buffer("table", ms.Tensor(np.full(5, 2, np.float32)))
    assert leaves(state)["table"].array.tolist() == [2] * 5, "although all names and shapes are the same"


def test_buffer_names_used_twice_are_refused():
    zero = np.zeros(1, np.float32)
    like_parameter = nn.CellList([nn.Cell()])
    like_parameter[0].weight = ms.Parameter(ms.Tensor(zero), name="0.mean")
    like_parameter[0].register_buffer("mean", ms.Tensor(zero))
    several = [Remembering(), Named(mean=zero)]
    for index, cell in enumerate(several):
        cell.update_parameters_name(f"net{index}.")
    for cells, name in ((like_parameter, "0.mean"), (several, "mean")):
        with pytest.raises(ck.StateMismatchError, match=rf"used twice: {name}\. .*give one of the cells by name"):
            StateManager(cells)


def test_buffers_of_a_named_cell_are_restored(root):
    average, fresh = (Named(mean=np.full(6, value, np.float32)) for value in (3, 0))
    saved(root, remembering(), average=average)
    manager(root).restore(StateManager(remembering(), average=fresh))
    assert tensors(fresh) == tensors(average)
    with pytest.raises(ck.StateMismatchError, match="not in this object: mean"):
        manager(root).restore(StateManager(remembering(), average=Mlp()))


WRITTEN = "The resumed run may not be bit-exact. Training changes the buffers calls, mean, but a graph reads"


def test_buffer_changed_under_graph_is_named_once(root, shown):
    begin_process(mode="graph")
    cell = remembering()
    with manager(root) as saves:
        state = StateManager(cell)
        saves.restore(state)
        saves.save(state).result()
        assert WRITTEN not in shown()
        for calls in (1, 2):
            trained(cell, calls)
            saves.save(state).result()
    assert shown().count(WRITTEN) == 1
    state = StateManager(cell := remembering(), strict=True)
    manager(root).restore(state)
    state.capture()
    ops.assign(cell.network.calls, ms.Tensor(np.int64(7)))
    with pytest.raises(ck.ResumeError, match="Training changes the buffers calls, but a graph reads"):
        state.capture()


def test_export_and_import_keep_buffers(root, tmp_path, shown):
    cell = saved(root, remembering(), 2)
    for end in ("ckpt", "safetensors"):
        export_weights(root, tmp_path / f"x.{end}")
        loaded = ms.load_checkpoint(str(tmp_path / f"x.{end}"), format=end)
        assert loaded["mean"].asnumpy().tobytes() == cell.network.mean.asnumpy().tobytes(), end
        import_weights(tmp_path / f"x.{end}", tmp_path / end)
        again = remembering()
        manager(tmp_path / end).restore(StateManager(again))
        assert tensors(again.network) == tensors(cell.network), end
    ms.save_checkpoint(cell.network, str(tmp_path / "without.ckpt"))  # MindSpore stores no buffers
    import_weights(tmp_path / "without.ckpt", tmp_path / "without")
    again = remembering()
    manager(tmp_path / "without").restore(StateManager(again))
    assert again.network.hidden.weight.asnumpy().tobytes() == cell.network.hidden.weight.asnumpy().tobytes()
    assert not again.network.mean.asnumpy().any()
    assert "in this training, but not imported; they keep their initial values: calls, hidden.table, mean" in shown()
