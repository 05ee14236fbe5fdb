"""A second start in one process, after an interruption that left no checkpoint: never with trained parameters."""

import types

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
import pytest
from mindspore import nn
from mindspore.train import Callback, Model
from support.training import (
    CrashError,
    Interrupt,
    Mlp,
    accumulation_cell,
    adam,
    begin_process,
    checkpoints,
    pipeline,
    tensors,
)
from unit.mindspore.parameters.test_buffers import Remembering

import ckptkit as ck
from ckptkit.tools.interchange import import_weights

MESSAGE = "cannot start afresh with trained parameters"


class Parts:
    """What the cells of a notebook build, one by one."""

    def __init__(self, network=Mlp):
        begin_process()
        self.network = network()
        self.optimizer = adam(self.network.trainable_params())

    def foreign(self):
        return Model(nn.TrainOneStepCell(self.network, self.optimizer))

    def own(self):
        return Model(ck.AccumulationTrainCell(self.network, self.optimizer, 2))


def interrupted(root, model, callback=None):
    with pytest.raises(CrashError):
        checkpoints(root).train(model, 2, pipeline(), callbacks=callback or Interrupt(3))


def test_trained_parameters_begin_no_run(root, tmp_path):
    """Neither the model nor another one of its parts; another run may begin with them, and new ones begin this one."""
    parts = Parts()
    model = parts.foreign()
    interrupted(root, model)
    before = tensors(model.train_network)
    for again in (model, parts.foreign(), parts.own()):  # whose new cell has counted nothing
        with pytest.raises(ck.ResumeError, match=MESSAGE):
            checkpoints(root).train(again, 2, pipeline())
    assert tensors(model.train_network) == before
    assert ck.CheckpointManager(root).checkpoints() == []
    assert checkpoints(tmp_path / "second phase").train(model, 1, pipeline()).batches_delivered == 0
    assert checkpoints(root).train(Parts().foreign(), 1, pipeline()).batches_delivered == 0


def test_buffer_that_counted_begins_no_run(root):
    """The new `AccumulationTrainCell` has counted nothing."""
    parts = Parts(Remembering)
    interrupted(root, parts.own(), Interrupt(1))
    with pytest.raises(ck.ResumeError, match=f"and calls, mean, .* changed since: a run {MESSAGE}"):
        checkpoints(root).train(parts.own(), 2, pipeline())


class Mistake(Callback):
    def on_train_step_begin(self, run_context):
        raise CrashError


def test_imported_weights_bring_back_no_moments(root, tmp_path):
    """A start that trained nothing may be repeated."""
    ms.save_checkpoint(Parts().network, str(tmp_path / "donor.ckpt"))
    import_weights(tmp_path / "donor.ckpt", root)
    model = Parts().foreign()
    interrupted(root, model, Mistake())
    interrupted(root, model)
    with pytest.raises(ck.ResumeError, match=MESSAGE):
        checkpoints(root).train(model, 2, pipeline())


class Drawn:
    """A loader of one's own over rows that it draws, with a state that may hold them."""

    def __init__(self, *, holds):
        self.rows, self.holds = np.random.normal(size=(60, 20)), holds

    def state_dict(self):
        return {"rows": self.rows} if self.holds else {}

    def load_state_dict(self, state):
        raise NotImplementedError

    def __iter__(self):
        return iter(self.rows)


def text_file(folder):
    (folder / "rows.txt").write_text("a\nb\n")
    return ds.TextFileDataset(str(folder / "rows.txt"))


def own_weights(cell):
    for one in cell.network.trainable_params():
        one.set_data(ms.Tensor(np.random.normal(size=one.shape).astype(np.float32)))


def shuffle(cell):
    np.random.permutation(3000)


DRAWS = {  # the data, what the script draws beside it, and how many numbers it draws and gives by name
    "weights": (lambda folder: pipeline(), lambda cell: None, 0, False),
    "own weights": (lambda folder: pipeline(), own_weights, 0, True),
    "seeded": (lambda folder: pipeline(), lambda cell: ms.set_seed(1) or shuffle(cell), 0, False),
    "by name": (lambda folder: pipeline(), lambda cell: None, 500, False),
    "in state": (lambda folder: Drawn(holds=True), lambda cell: None, 0, False),
    "files": (text_file, shuffle, 0, False),
    "order": (lambda folder: pipeline(), shuffle, 0, True),
    "loader": (lambda folder: Drawn(holds=False), lambda cell: None, 0, True),
    "list": (lambda folder: list(np.random.normal(size=(50, 20))), lambda cell: None, 0, True),
}


def test_draws_that_no_checkpoint_holds_are_named(unseeded, caplog, tmp_path):
    """Each start without a seed has other data; weights that a script draws, and what it gives by name, are stored."""
    for case, (make_data, draw, noise, is_named) in DRAWS.items():
        begin_process()
        unseeded()
        caplog.clear()
        data, cell = make_data(tmp_path), accumulation_cell()
        draw(cell)
        kept = types.SimpleNamespace(noise=np.random.normal(size=noise))
        for strict in (False, True):
            batches = ck.data.resumable(data, epochs=1)
            state = ck.StateManager(cell, batches, strict=strict, kept=ck.attributes(kept, "noise"))
            if strict and is_named:
                with pytest.raises(ck.ResumeError, match="never seeded"):
                    state.begin(str(tmp_path))
            else:
                state.begin(str(tmp_path))
        words = "numpy.random was never seeded, and more was drawn from it than MindSpore's initializers need"
        assert caplog.text.count(words) == is_named, case
