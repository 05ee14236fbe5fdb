"""Who else may write within a window: a checkpoint holds the bits of its moment, whoever that is."""

from __future__ import annotations

import functools
import threading

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
import pytest
from mindspore import nn, ops
from mindspore.train import Callback, Model
from safetensors.numpy import load_file

import ckptkit as ck
from ckptkit.manager.run import Run
from ckptkit.mindspore.callback.parameter_writers import may_write_in_window
from ckptkit.storage.local import LocalStorage

_WIDTH = 160  # of a weight above the size below which everything is copied


class _Held(LocalStorage):
    """Writes no shard before it may."""

    def __init__(self, root):
        super().__init__(root)
        self.go = threading.Event()

    def write(self, key, stream, size_bytes):
        if key.endswith(".safetensors"):
            self.go.wait()
        super().write(key, stream, size_bytes)


class _Loss(nn.Cell):
    def __init__(self):
        super().__init__()
        self.weight = ms.Parameter(ms.Tensor(np.ones((_WIDTH, _WIDTH), np.float32)), name="weight")

    def construct(self, x):
        return ops.mean(ops.matmul(x, self.weight) ** 2)


class _Halving(ck.AccumulationTrainCell):
    def __call__(self, *inputs):
        loss = super().__call__(*inputs)
        _halve(self)
        return loss


class _AtEpochEnd(Callback):
    """Halves the weights in place, and lets the storage go on only then."""

    def __init__(self, cell, storage):
        self._cell = cell
        self._storage = storage

    def on_train_epoch_end(self, run_context):
        _halve(self._cell)
        self._storage.go.set()


class _Stop(Callback):
    def on_train_step_end(self, run_context):
        if run_context.original_args().cur_step_num == 3:
            run_context.request_stop()


def _halve(cell):
    ops.assign(cell.network.weight, cell.network.weight * 0.5)
    cell.network.weight.asnumpy()


def _cell(kind=ck.AccumulationTrainCell):
    network = _Loss()
    return kind(network, nn.Momentum(network.trainable_params(), 0.01, 0.9), 4)


def _stored(root, name):
    return load_file(root / "checkpoints" / name / "rank-00000" / "weights-000.safetensors")["weight"]


def test_train_cell_with_own_call_has_no_window(tmp_path):
    storage, cell = _Held(tmp_path), _cell(_Halving)
    batch = ms.Tensor(np.ones((1, _WIDTH), np.float32))
    with ck.CheckpointManager(storage) as manager:
        state = ck.StateManager(cell)
        manager.restore(state)
        cell(batch)
        handle = manager.save(state)
        then = cell.network.weight.asnumpy().copy()
        cell(batch)
        storage.go.set()
        name = handle.result()
    np.testing.assert_array_equal(_stored(tmp_path, name), then)


@pytest.mark.parametrize("order", ["writer after", "stopped from behind"])
def test_unfenced_epoch_ends_have_no_window(tmp_path, order, monkeypatch):
    storage, cell = _Held(tmp_path), _cell()
    dataset = ds.NumpySlicesDataset({"x": np.ones((6, _WIDTH), np.float32)}, shuffle=False).batch(1)
    then = []
    begin = Run._begin

    def save(self, state, moment, said):
        handle = begin(self, state, moment, said)
        then.append((handle, cell.network.weight.asnumpy().copy()))
        return handle

    monkeypatch.setattr(Run, "_begin", save)
    writer, stop = _AtEpochEnd(cell, storage), _Stop()
    every = 6 if order == "writer after" else 3
    ckpt = ck.CheckpointCallback(storage, save=ck.SaveEvery(micro_steps=every), training=ck.Training(read_only=[_Stop]))
    model = Model(cell)
    ckpt.resume(model, dataset, 2)
    callbacks = [ckpt, writer] if order == "writer after" else [writer, ckpt, stop]
    model.train(2, dataset, callbacks=callbacks, dataset_sink_mode=False)
    handle, weight = then[0]
    np.testing.assert_array_equal(_stored(tmp_path, handle.result()), weight)


class _Evaluates(nn.Cell):
    def __init__(self, network):
        super().__init__(auto_prefix=False)
        self.network = network

    def construct(self, x):
        loss = self.network(x)
        return loss, loss, loss


class _BetweenEpochs(Callback):
    """Only looks within an epoch; a subclass halves the weights in another hook."""

    def __init__(self, cell, storage):
        self._cell, self._storage, self.losses = cell, storage, []

    def on_train_step_end(self, run_context):
        self.losses.append(float(run_context.original_args().net_outputs.asnumpy()))

    def _halve(self, run_context):
        if not self._storage.go.is_set():
            _halve(self._cell)
            self._storage.go.set()


@pytest.mark.parametrize("hook", ["on_train_epoch_end", "on_eval_begin"])
def test_writer_between_epochs_tears_no_save_within_one(tmp_path, hook, monkeypatch):
    """It writes in place, and before the storage has got a byte of the save."""
    storage, cell, then = _Held(tmp_path), _cell(), []
    dataset = ds.NumpySlicesDataset({"x": np.ones((6, _WIDTH), np.float32)}, shuffle=False).batch(1)
    begin = Run._begin

    def save(self, state, moment, said):
        assert self.window_use == "auto"
        handle = begin(self, state, moment, said)
        then.append((handle, cell.network.weight.asnumpy().copy()))
        return handle

    monkeypatch.setattr(Run, "_begin", save)
    writer = type("Writer", (_BetweenEpochs,), {hook: _BetweenEpochs._halve})(cell, storage)
    assert may_write_in_window([writer], [], followed=False) == []
    model = Model(cell, eval_network=_Evaluates(cell.network), metrics={"loss"}, eval_indexes=[0, 1, 2])
    ckpt = ck.CheckpointCallback(storage, save=ck.SaveEvery(micro_steps=5))
    start = functools.partial(ckpt.fit, valid_dataset=dataset) if "eval" in hook else ckpt.train
    start(model, 1, dataset, callbacks=[writer], dataset_sink_mode=False)
    handle, weight = then[0]
    assert len(writer.losses) == 6
    assert not np.array_equal(cell.network.weight.asnumpy(), weight)
    np.testing.assert_array_equal(_stored(tmp_path, handle.result()), weight)


_CELL = _cell()
HOOKS = sorted({name for name in dir(Callback) if name.startswith("on_")} | {"step_begin", "step_end", "epoch_begin"})


def test_callback_that_acts_in_a_window_is_named():
    for hook in (*HOOKS, "epoch_end", "end"):
        one = type("Mine", (Callback,), {hook: lambda self, run_context: _halve(_CELL)})()
        before = hook in ("on_train_begin", "begin")  # nothing was saved yet
        at_end = (hook.endswith("end") and "step" not in hook) or "eval" in hook
        assert may_write_in_window([one], [], followed=True) == ([] if before else ["Mine"]), hook
        assert may_write_in_window([one], [], followed=False) == ([] if before or at_end else ["Mine"]), hook
        for declared in (type(one), Callback, one):  # its class, one of its classes, itself
            assert may_write_in_window([one], [declared], followed=True) == [], (hook, declared)
