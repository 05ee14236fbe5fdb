"""`CheckpointManager.loop` with MindSpore's state: exact after a SIGKILL, and what the loop forgets is named."""

from __future__ import annotations

import itertools
import signal

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
import pytest
from mindspore import nn
from support.process import run_python
from support.training import begin_process, tensors

import ckptkit as ck
from ckptkit.errors import ResumeError

PROGRAM = """
import os, signal, sys
import mindspore as ms, mindspore.dataset as ds, numpy as np
from mindspore import nn
import ckptkit as ck

root, kill, K = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
ms.set_seed(1)
x = np.random.default_rng(0).random((24, 4), np.float32)
dataset = ds.NumpySlicesDataset({"x": x, "y": x.sum(1, keepdims=True)}).batch(3)
network = nn.Dense(4, 1)
if K:
    loss = nn.WithLossCell(network, nn.MSELoss())
    cell = ck.AccumulationTrainCell(loss, nn.Adam(network.trainable_params(), 0.1), K).set_train()
    cells = [cell, None]
else:
    loss, optimizer = nn.MSELoss(), nn.Adam(network.trainable_params(), 0.1)
    gradients = ms.value_and_grad(lambda x, y: loss(network(x), y), None, optimizer.parameters)
    cells = [network, None, optimizer]

batches = ck.data.resumable(dataset, epochs=3, as_dict=True)
state = ck.StateManager(cells, batches)
options = dict(save=ck.SaveEvery(micro_steps=1), saving=ck.Saving(when_busy="wait"))
for number, data in ck.CheckpointManager(root, **options).loop(state):
    x, y = data["x"], data["y"] * float(1 + np.random.rand())
    if K:
        value = cell(x, y)
    else:
        value, grads = gradients(x, y)
        optimizer(grads)
    words = [one.asnumpy().tobytes().hex() for one in (value, x, *state.cell.get_parameters())]
    print(number, *words, flush=True)
    if number == kill:
        os.kill(os.getpid(), signal.SIGKILL)
    if number % 2:
        continue
"""


def lines_of(tmp_path, root, kill, k):
    script = tmp_path / "script.py"
    script.write_text(PROGRAM)
    work = tmp_path / f"{root}-{kill}"
    work.mkdir()
    ended = run_python(str(script), str(tmp_path / root), str(kill), str(k), folder=work, environment={}, timeout=120)
    ended.expect(0 if kill < 0 else -signal.SIGKILL)
    return dict(line.split(" ", 1) for line in ended.stdout.splitlines())


@pytest.mark.parametrize("k", [0, pytest.param(4, marks=pytest.mark.extended)])
def test_killed_loop_resumes_exactly(tmp_path, k):
    whole = lines_of(tmp_path, "whole", -1, k)
    assert [*map(int, whole)] == [*range(24)]
    lives = [lines_of(tmp_path, "run", kill, k) for kill in (9, 16, -1)]
    for before, life in itertools.pairwise(lives):
        first = min(map(int, life))
        # A save under way dies with the process; the batch that was being trained was in none.
        assert 0 < first <= max(map(int, before))
    for life in lives:
        assert life == {number: whole[number] for number in life}
    assert max(map(int, lives[-1])) == 23


class Parts:
    def __init__(self, epochs=2, **options):
        begin_process()
        self.network = nn.Dense(4, 1)
        self.optimizer = nn.Momentum(self.network.trainable_params(), 0.1, 0.9)
        loss = nn.MSELoss()
        self.gradients = ms.value_and_grad(lambda x, y: loss(self.network(x), y), None, self.network.trainable_params())
        rows = np.arange(32, dtype=np.float32).reshape(8, 4)
        dataset = ds.NumpySlicesDataset({"x": rows, "y": rows[:, :1]}, shuffle=False).batch(2)
        self.state = ck.StateManager([self.network, self.optimizer], ck.data.resumable(dataset, epochs), **options)

    def train(self, x, y):
        loss, grads = self.gradients(x, y)
        self.optimizer(grads)
        return float(loss)


def warned(caplog):
    return [one.getMessage() for one in caplog.records if "bit-exact" in one.getMessage()]


def manager_of(root):
    return ck.CheckpointManager(root, save=ck.SaveEvery(micro_steps=1), saving=ck.Saving(when_busy="wait"))


def test_variables_of_such_a_loop_go_on(tmp_path):
    def life(root, until=None):
        parts, scale, last, rng = Parts(), 1.0, None, np.random.default_rng(0)
        with manager_of(root) as manager:
            for number, (x, y) in manager.loop(parts.state):
                rows = (x if last is None else last) / 64
                loss = parts.train(rows, y / 64 * scale + number + float(rng.normal()))
                if number == until:
                    break
                scale, last = 0.9 * scale + 0.1 * loss, x
        return tensors(parts.network), scale, rng.random()

    whole = life(tmp_path / "whole")
    life(tmp_path / "cut", until=5)
    assert life(tmp_path / "cut") == whole


def test_numbers_of_enumerate_around_it_are_named(tmp_path, caplog):
    parts = Parts()
    with manager_of(tmp_path) as manager:
        for again, (_, (x, y)) in enumerate(manager.loop(parts.state)):
            parts.train(x, y + again)
    assert "enumerate around the batches" in "\n".join(warned(caplog))


def noises():
    while True:
        yield float(np.random.normal())


def test_strict_loop_refuses_at_the_first_save_what_cannot_be_stored(tmp_path):
    parts, trained = Parts(strict=True), []

    def train():
        noise = noises()
        with manager_of(tmp_path) as manager:
            for _, (x, y) in manager.loop(parts.state):
                trained.append(parts.train(x, y + next(noise)))

    with pytest.raises(ResumeError, match=r"train\(\): noise"):
        train()
    assert len(trained) == 1


def test_loop_without_resumable_batches_is_refused(tmp_path):
    parts = Parts()
    state = ck.StateManager(parts.network)
    with pytest.raises(ResumeError, match=r"ckptkit\.data\.resumable"):
        ck.CheckpointManager(tmp_path).loop(state)
    assert not [*tmp_path.iterdir()]


def test_batch_that_was_not_trained_is_not_claimed(tmp_path, caplog):
    parts = Parts()
    options = {"save": ck.SaveEvery(micro_steps=2), "saving": ck.Saving(when_busy="wait")}
    with ck.CheckpointManager(tmp_path, **options) as manager:
        for number, (x, y) in manager.loop(parts.state):
            if number == 5:
                break
            parts.train(x, y)
    assert max(one.progress.batches_delivered for one in manager.checkpoints()) == 4
    assert "left in batch 6" in caplog.text


def test_dicts_have_the_columns_of_create_dict_iterator(tmp_path):
    rows = np.arange(12, dtype=np.float32).reshape(6, 2)
    dataset = ds.NumpySlicesDataset({"b": rows, "a": rows[:, 0]}, shuffle=False).batch(2)
    expected = [*dataset.create_dict_iterator(num_epochs=1, output_numpy=True)] * 2
    state = ck.StateManager(nn.Dense(2, 1), ck.data.resumable(dataset, 2, as_dict=True))
    found = [batch for _, batch in ck.CheckpointManager(tmp_path).loop(state)]
    assert [[*one] for one in found] == [[*one] for one in expected]
    assert all(
        (mine[name].asnumpy() == its[name]).all() for mine, its in zip(found, expected, strict=True) for name in its
    )


def test_dicts_of_an_iterable_are_its_own_business():
    with pytest.raises(ValueError, match="let it deliver dicts itself"):
        ck.data.resumable([{"x": 1}], 1, as_dict=True)


def test_none_alone_is_no_cell():
    with pytest.raises(TypeError, match="train_cell must be"):
        ck.StateManager([None])
