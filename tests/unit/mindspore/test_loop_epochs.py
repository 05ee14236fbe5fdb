"""A loop of epochs over `ck.loop`: exact wherever in an epoch the process dies, with three changed lines."""

import logging

import mindspore as ms
import numpy as np
import pytest
from support.training import tensors
from test_loop import Training, lines_of
from tqdm import tqdm

from ckptkit.errors import ResumeError

# What a loop does before, among and after the batches of an epoch: draws, settings, sums, an average of the weights
# that is swapped in for an evaluation, early stopping; and its batches in a function of their own.
PROGRAM = """
import os, signal, sys
import mindspore as ms, mindspore.dataset as ds, numpy as np
from mindspore import nn
import ckptkit as ck

root, DEATH = sys.argv[1], sys.argv[2]

def die(place):
    if place == DEATH:
        os.kill(os.getpid(), signal.SIGKILL)

class Trainer:
    def __init__(self):
        ms.set_seed(1)
        x = np.random.default_rng(0).random((24, 4), np.float32)
        self.dataset = ds.NumpySlicesDataset({"x": x, "y": x.sum(1, keepdims=True)}).batch(4)
        self.network, self.loss = nn.Dense(4, 1), nn.MSELoss()
        self.optimizer = nn.Adam(self.network.trainable_params(), 0.1)
        forward = lambda x, y: self.loss(self.network(x), y)
        self.gradients = ms.value_and_grad(forward, None, self.optimizer.parameters)
        self.average = {p.name: p.asnumpy().copy() for p in self.network.get_parameters()}
        self.step, self.history = 0, []

    def train_epoch(self, epoch, dataset, factor):
        losses = []
        for i, data in enumerate(dataset.create_dict_iterator()):
            value, grads = self.gradients(data["x"], data["y"] * float(factor + np.random.rand()))
            self.optimizer(grads)
            losses.append(float(value))
            self.step += 1
            for p in self.network.get_parameters():
                self.average[p.name] = 0.9 * self.average[p.name] + 0.1 * p.asnumpy()
            x = data["x"].asnumpy().tobytes().hex()
            rate = float(self.optimizer.learning_rate)
            print(f"{epoch}.{i}", self.step, losses, factor, rate, x, dataset.get_dataset_size(), flush=True)
            die(f"{epoch}.{i}")
        return sum(losses)

    def evaluate(self):
        self.network.set_train(False)
        kept = {p.name: p.asnumpy().copy() for p in self.network.get_parameters()}
        for p in self.network.get_parameters():
            ms.ops.assign(p, ms.Tensor(self.average[p.name]))
        score = float(self.loss(self.network(ms.ops.ones((2, 4))), ms.ops.ones((2, 1)))) + np.random.rand()
        for p in self.network.get_parameters():
            ms.ops.assign(p, ms.Tensor(kept[p.name]))
        return score

    def train(self):
        best, patience, score = float("inf"), 0, 0.0
        for epoch, dataset in ck.loop(root, self.dataset, 9, train=[self.network, self.optimizer],
                save=ck.SaveEvery(micro_steps=1), saving=ck.Saving(when_busy="wait")).epochs:
            factor = np.random.rand() + 0.1 * epoch + 0.01 * score
            self.network.set_train()
            ms.ops.assign(self.optimizer.learning_rate, self.optimizer.learning_rate * 0.9)
            die(f"{epoch} begins")
            self.history.append(self.train_epoch(epoch, dataset, factor))
            score = self.evaluate()
            best, patience = (score, 0) if score < best else (best, patience + 1)
            average = [value.tobytes().hex() for value in self.average.values()]
            print(f"{epoch} ends", score, best, patience, self.history, average, flush=True)
            die(f"{epoch} ends")
            if patience == 2:
                break

Trainer().train()
"""
DEATHS = ("0.0", "0.3", "1 begins", "1 ends", "2.5", "2 ends", "-")


def test_killed_loop_of_epochs_resumes_exactly(tmp_path):
    whole, said = lines_of(PROGRAM, tmp_path / "whole", "-")
    assert "no checkpoint" not in said
    assert "evaluation mode" not in said  # each epoch sets the mode before its batches
    assert len(whole) > 3 * 7  # it stopped by itself, after three epochs or more
    lives = [lines_of(PROGRAM, tmp_path / "run", death) for death in DEATHS]
    for life, said in lives:
        assert life
        assert [line for line in life if line not in whole] == []
        assert "differs from the saved run" not in said
    assert lives[-1][0][-1] == whole[-1]


class Epochs(Training):
    """Two epochs of four batches, in a loop of epochs."""

    def __init__(self, root, data=None, **options):
        super().__init__()
        self.run = self.loop(root, every=99, data=data, **options)


def test_stop_within_an_epoch_runs_what_follows_and_is_stored(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    states = []
    for _ in range(2):
        training, places, ended = Epochs(tmp_path), [], []
        for epoch, dataset in training.run.epochs:
            for x, y in dataset:
                training.step(x, y)
                places.append(training.run.step)
                if training.run.step == 4:
                    training.run.stop("it is enough")
            ended.append(epoch)
        states.append((tensors(training.network), places, ended))
    assert states[0] == (states[1][0], [0, 1, 2, 3, 4], [0, 1])
    assert states[1][1:] == (states[0][1], [0, 1])  # put back, without training
    assert "training ended after 5 batches (it is enough)" in caplog.text


def test_save_asked_for_after_the_batches_holds_the_whole_epoch(tmp_path):
    training = Epochs(tmp_path, epochs=1)
    for _, dataset in training.run.epochs:
        for x, y in dataset:
            training.step(x, y)
        ms.ops.assign(training.network.bias, ms.Tensor(np.full(1, 7, np.float32)))
        training.run.save()
    again = Epochs(tmp_path, epochs=1)
    assert tensors(again.network) == tensors(training.network)
    assert [*again.run.epochs] == []


def test_columns_and_lengths_are_those_of_the_dataset(tmp_path):
    training, shapes = Epochs(tmp_path), []
    for epoch, dataset in training.run.epochs:
        make = dataset.create_dict_iterator if epoch else dataset.create_tuple_iterator
        for batch in make(num_epochs=1, output_numpy=True):
            columns = batch if epoch else dict(zip("xy", batch, strict=True))
            shapes.append({name: (type(value), value.shape) for name, value in columns.items()})
        assert len(dataset) == dataset.get_dataset_size() == 4
    assert shapes == [{"x": (np.ndarray, (2, 4)), "y": (np.ndarray, (2, 1))}] * 8


def counts_through_tqdm(training):
    for _, dataset in training.run.epochs:
        for i, (x, y) in enumerate(tqdm(dataset, disable=True)):
            training.step(x + i, y)


def gathers_in_a_comprehension(training):
    for _, dataset in training.run.epochs:
        training.losses = [training.step(x, y) for x, y in dataset]


def sums_a_generator(training):
    for _, dataset in training.run.epochs:
        training.total = sum(training.step(x, y) or 1 for x, y in dataset)


@pytest.mark.parametrize(
    ("loop", "name"),
    [
        (counts_through_tqdm, "enumerate around the batches"),
        (gathers_in_a_comprehension, "comprehension around the batches"),
        (sums_a_generator, "comprehension around the batches"),
    ],
)
def test_what_lies_in_no_variable_is_named(tmp_path, caplog, loop, name):
    loop(Epochs(tmp_path))
    assert name in caplog.text


def goes_on_early(training):
    for _, dataset in training.run.epochs:
        for x, y in dataset:
            training.step(x, y)
            break


def iterates_twice(training):
    for _, dataset in training.run.epochs:
        for x, y in dataset:
            training.step(x, y)
        next(iter(dataset))


def iterates_afterwards(training):
    for _, dataset in training.run.epochs:  # noqa: B007
        break
    next(iter(dataset))


@pytest.mark.parametrize(
    ("loop", "message"),
    [
        (goes_on_early, "after epoch 0 without 3 batches of it"),
        (iterates_twice, "epoch 0 are iterated over already"),
        (iterates_afterwards, "has ended"),
    ],
)
def test_loop_that_could_not_resume_is_refused(tmp_path, loop, message):
    with pytest.raises(ResumeError, match=message):
        loop(Epochs(tmp_path))


def test_data_that_has_no_columns_or_length_says_so(tmp_path):
    batch = tuple(ms.Tensor(np.ones(shape, np.float32)) for shape in ((2, 4), (2, 1)))

    class Stream:
        def __iter__(self):
            yield batch

    with pytest.raises(ResumeError, match="__len__"):
        assert Epochs(tmp_path / "stream", Stream()).run.epochs
    for _, dataset in Epochs(tmp_path / "list", [batch]).run.epochs:
        with pytest.raises(TypeError, match="no MindSpore pipeline"):
            dataset.create_dict_iterator()
        break
