"""Losses in the train cell."""

from __future__ import annotations

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops

import ckptkit as ck
from exactness.jobs.job import job
from exactness.jobs.outcome import Exact, Named, Refused
from exactness.jobs.parts import (
    BATCH,
    CLASSES,
    EPOCHS,
    FEATURES,
    SAMPLES,
    K,
    Loss,
    Net,
    accumulating,
    adam,
    slices,
    train,
)


@job(Exact(), "graph")
def label_smoothing_and_class_weights(run):
    loss = nn.CrossEntropyLoss(weight=ms.Tensor([1.0, 2.0, 0.5]), label_smoothing=0.1)
    train(run, nn.WithLossCell(Net(), loss))


class Contrastive(nn.Cell):
    """A queue of earlier embeddings is what the present ones are told from."""

    def __init__(self, size=24):
        super().__init__()
        self.encoder = Net(4)
        self.bank = ms.Parameter(ops.zeros((size, 4)), name="bank", requires_grad=False)
        self.place = ms.Parameter(ms.Tensor(0, ms.int32), name="place", requires_grad=False)
        self.size = size

    def construct(self, x, y):
        key = ops.L2Normalize(axis=1)(self.encoder(x))
        near = ops.matmul(key, self.encoder(x * 1.01).T) / 0.2
        far = ops.matmul(key, self.bank.T) / 0.2
        loss = ops.cross_entropy(ops.cat((near, far), 1), ops.arange(x.shape[0]))
        index = (self.place + ops.arange(x.shape[0]).astype(ms.int32)) % self.size
        written = ops.tensor_scatter_elements(self.bank, ops.tile(index.expand_dims(1), (1, 4)), ops.stop_gradient(key))
        loss = ops.depend(loss, ops.assign(self.bank, written))
        return ops.depend(loss, ops.assign(self.place, (self.place + x.shape[0]) % self.size))


@job(Exact(), "graph")
@job(Exact(), "pynative")
def contrastive_memory_bank(run):
    train(run, Contrastive())


@job(Refused(('Use "exact"',)), "pynative")
def contrastive_memory_bank_rewound(run):
    train(run, Contrastive(), mid_cycle="rewind")


class Triplet(nn.Cell):
    def __init__(self):
        super().__init__()
        self.encoder = Net(4)

    def construct(self, x, y):
        z = self.encoder(x)
        apart = ((z.expand_dims(1) - z.expand_dims(0)) ** 2).sum(-1)
        same = (y.expand_dims(1) == y.expand_dims(0)).astype(ms.float32)
        hardest = (apart * same).max(1)
        nearest = (apart + same * 1e6).min(1)
        return ops.relu(hardest - nearest + 0.5).mean()


@job(Exact(), "graph")
def triplets_mined_in_the_batch(run):
    train(run, Triplet(), mid_cycle="rewind")


class Ctc(nn.Cell):
    def __init__(self):
        super().__init__()
        self.network = nn.Dense(FEATURES, 5)

    def construct(self, x, label, lengths):
        logits = ops.log_softmax(self.network(x).transpose(1, 0, 2), 2)
        loss = ops.ctc_loss(logits, label, ops.full_like(lengths, x.shape[1]), lengths, reduction="mean")
        return loss[0] if isinstance(loss, tuple) else loss


@job(Exact(), "pynative")
def ctc_of_labels_with_lengths(run):
    rng = np.random.default_rng(2)
    columns = {
        "x": rng.standard_normal((SAMPLES, 7, FEATURES), np.float32),
        "label": rng.integers(1, 5, (SAMPLES, 3), np.int32),
        "lengths": rng.integers(1, 4, SAMPLES, np.int32),
    }
    loss = Ctc()
    run.train(ms.Model(accumulating(loss)), EPOCHS, ds.NumpySlicesDataset(columns).batch(BATCH))


class Mixup(nn.Cell):
    def __init__(self):
        super().__init__()
        self.network = Net()

    def construct(self, x, y):
        share = ops.rand(1)
        target = ops.one_hot(y, CLASSES, ms.Tensor(1.0), ms.Tensor(0.0))
        mixed = share * x + (1 - share) * ops.flip(x, (0,))
        targets = share * target + (1 - share) * ops.flip(target, (0,))
        return ops.cross_entropy(self.network(mixed), targets)


@job(Exact(), "pynative")
@job(Named("rand"), "graph")
def mixup_inside_the_network(run):
    train(run, Mixup())


@job(Exact(), "graph")
def mixup_by_numpy_in_the_loop(run):
    cell = accumulating()

    def step(x, y):
        share = np.random.beta(0.4, 0.4)
        other = np.random.permutation(x.shape[0])
        mixed = share * x.asnumpy() + (1 - share) * x.asnumpy()[other]
        return cell(ms.Tensor(mixed, ms.float32), y)

    run.loop(cell, ck.data.resumable(slices(), EPOCHS), step)


class Focal(nn.Cell):
    """Weighs classes by how often they were seen so far."""

    def __init__(self):
        super().__init__()
        self.network = Net()
        self.seen = ms.Parameter(ops.ones(CLASSES), name="seen", requires_grad=False)

    def construct(self, x, y):
        one_hot = ops.one_hot(y, CLASSES, ms.Tensor(1.0), ms.Tensor(0.0))
        ops.assign_add(self.seen, one_hot.sum(0))
        sure = (ops.softmax(self.network(x)) * one_hot).sum(1)
        rare = (one_hot / self.seen).sum(1)
        return -(rare * (1 - sure) ** 2 * ops.log(sure + 1e-6)).mean()


@job(Exact(), "graph")
def focal_loss_with_class_counts(run):
    train(run, Focal(), mid_cycle="align")


class Uncertainty(nn.Cell):
    """Two tasks, whose weights are learned."""

    def __init__(self):
        super().__init__()
        self.network = Net(CLASSES + 1)
        self.log_variances = ms.Parameter(ops.zeros(2), name="log_variances")

    def construct(self, x, y):
        out = self.network(x)
        losses = ops.stack((ops.cross_entropy(out[:, :CLASSES], y), ops.mse_loss(out[:, CLASSES], x.sum(1))))
        return (losses * ops.exp(-self.log_variances) + self.log_variances).sum()


@job(Exact(), "graph")
def learned_weights_of_two_tasks(run):
    train(run, Uncertainty())


class Distilled(nn.Cell):
    def __init__(self):
        super().__init__()
        self.teacher, self.student = Net(), Net()
        for parameter in self.teacher.get_parameters():
            parameter.requires_grad = False

    def construct(self, x, y):
        soft = ops.softmax(ops.stop_gradient(self.teacher(x)) / 2)
        student = self.student(x)
        return ops.cross_entropy(student, y) + ops.cross_entropy(student / 2, soft)


@job(Exact(), "graph")
def distilled_from_a_frozen_teacher(run):
    train(run, Distilled(), frozen=lambda name: "teacher" in name)


class Margin(nn.Cell):
    def __init__(self):
        super().__init__()
        self.encoder = Net(4)
        self.classes = ms.Parameter(ms.Tensor(np.eye(CLASSES, 4, dtype=np.float32)), name="classes")
        self.margin = ms.Parameter(ms.Tensor(0.0), name="margin", requires_grad=False)

    def construct(self, x, y):
        unit = ops.L2Normalize(axis=1)
        cosine = ops.matmul(unit(self.encoder(x)), unit(self.classes).T)
        return ops.cross_entropy(
            (cosine - self.margin * ops.one_hot(y, CLASSES, ms.Tensor(1.0), ms.Tensor(0.0))) * 8, y
        )


class RaiseMargin(ms.train.Callback):
    def __init__(self, loss):
        super().__init__()
        self.loss = loss

    def on_train_step_end(self, run_context):
        self.loss.margin.set_data(ms.Tensor(0.01 * run_context.original_args().cur_step_num, ms.float32))


@job(Exact(), "graph")
def margin_raised_by_a_callback(run):
    loss = Margin()
    train(run, loss, callbacks=[RaiseMargin(loss)])


class Center(nn.Cell):
    """Every class has a centre, which follows what was seen of it."""

    def __init__(self):
        super().__init__()
        self.encoder, self.head = Net(4), nn.Dense(4, CLASSES)
        self.centers = ms.Parameter(ops.zeros((CLASSES, 4)), name="centers", requires_grad=False)

    def construct(self, x, y):
        z = self.encoder(x)
        near = self.centers[y]
        loss = ops.cross_entropy(self.head(z), y) + 0.1 * ((z - near) ** 2).sum(1).mean()
        moved = ops.tensor_scatter_add(self.centers, y.expand_dims(1), 0.1 * ops.stop_gradient(z - near))
        return ops.depend(loss, ops.assign(self.centers, moved))


@job(Exact(), "pynative")
def center_loss(run):
    train(run, Center())


class Annealed(nn.Cell):
    """The temperature is a float that every call changes."""

    def __init__(self):
        super().__init__()
        self.network = Net()
        self.temperature = 4.0

    def construct(self, x, y):
        self.temperature = max(1.0, self.temperature * 0.9)
        return ops.cross_entropy(self.network(x) / self.temperature, y)


@job(Named("temperature"), "pynative")
def temperature_in_a_plain_attribute(run):
    train(run, Annealed())


class Normalized(nn.Cell):
    """Divides by an average of the losses so far, which is a tensor assigned to self."""

    def __init__(self):
        super().__init__()
        self.loss = Loss()
        self.average = ms.Tensor(1.0)

    def construct(self, x, y):
        value = self.loss(x, y)
        self.average = 0.9 * self.average + 0.1 * ops.stop_gradient(value)
        return value / self.average


@job(Named("average"), "pynative")
def loss_average_in_a_tensor_attribute(run):
    train(run, Normalized())


@job(Exact(), "graph")
def means_over_tokens_with_padding(run):
    class Tokens(nn.Cell):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(9, 6, padding_idx=0), nn.Dense(6, 9)

        def construct(self, x, y):
            mask = (y != 0).astype(ms.float32)
            logits = self.head(ops.tanh(self.embed(x))).reshape(-1, 9)
            value = ops.cross_entropy(logits, y.reshape(-1), reduction="none").reshape(y.shape)
            return (value * mask).sum(), mask.sum()

    rng = np.random.default_rng(1)
    x = rng.integers(0, 9, (SAMPLES, 5), np.int32)
    loss = Tokens()
    cell = ck.AccumulationTrainCell(loss, adam(loss), K, normalize="weights", clip_norm=0.5, remainder="drop")
    data = ds.NumpySlicesDataset({"x": x, "y": np.roll(x, -1, 1)}, shuffle=True).batch(BATCH)
    run.train(ms.Model(cell), EPOCHS, data)
