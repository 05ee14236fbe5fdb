"""EarlyStopping, ReduceLROnPlateau and other callbacks beside CheckpointCallback."""

import contextlib

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn
from mindspore.train import Callback, EarlyStopping, Model, ReduceLROnPlateau, TimeMonitor
from support.training import (
    CrashError,
    Interrupt,
    Job,
    Stop,
    accumulation_cell,
    checkpoints,
    disturb,
    pipeline,
    tensors,
)

from ckptkit.core.state_encoding import decode_tree, encode_tree
from ckptkit.core.tensors import Leaf
from ckptkit.mindspore.state.other_callbacks import OtherCallbacks

EPOCHS = 7


class Losses(Callback):
    """Stands in for the loss of each epoch, so that a test decides when nothing improves any more."""

    def __init__(self, *by_epoch):
        self.by_epoch = by_epoch

    def on_train_epoch_end(self, run_context):
        params = run_context.original_args()
        params.net_outputs = ms.Tensor(self.by_epoch[params.cur_epoch_num - 1], ms.float32)


SHORT = 3  # batches per epoch


def short():
    return pipeline(4 * SHORT)


def life(root, *callbacks, epochs=EPOCHS, crash_at=None):
    """One life of a training with these callbacks; returns its train cell."""
    job = Job(data=short)
    if crash_at is None:
        disturb()
    others = [*callbacks, *([Interrupt(crash_at)] if crash_at else [])]
    with contextlib.suppress(CrashError):
        checkpoints(root, crash_at - 1 if crash_at else 1000).train(job.model, epochs, job.data, callbacks=others)
        assert crash_at is None
    return job.cell


def stopping(**options):
    return EarlyStopping(monitor="loss", patience=2, **options)


def reducing():
    return ReduceLROnPlateau(monitor="loss", factor=0.5, patience=2, cooldown=1)


def test_half_epoch_does_not_count_as_whole(root):
    """MindSpore fires on_train_epoch_end at the half epoch, too: the callbacks count it, the checkpoint does not."""
    whole, half, resumed = (EarlyStopping(monitor="loss", patience=1) for _ in range(3))
    rest = (3.0, 2.0, 1.0, 0.5)
    expected = life(root.with_name("whole"), Losses(5.0, 4.0, 3.5, *rest), whole)
    life(root, Losses(5.0, 4.0, 4.0, *rest), half, Stop(2 * SHORT + 2))
    assert half.stopped_epoch == 3, "it is stopped by a loss of half an epoch"
    assert tensors(life(root, Losses(5.0, 4.0, 3.5, *rest), resumed)) == tensors(expected)
    assert (resumed.wait, resumed.stopped_epoch, resumed.best) == (whole.wait, 0, whole.best)


def test_best_weights_go_on_and_are_restored(root, shown):
    def keeping():
        return Losses(5.0, 1.0, 4.0, 3.5, 3.5, 3.5, 1.0), stopping(restore_best_weights=True)

    whole = life(root.with_name("whole"), *keeping())
    life(root, *keeping(), crash_at=3 * SHORT + 2)
    assert tensors(life(root, *keeping())) == tensors(whole)
    again = Job(data=short)
    point = checkpoints(root).resume(again.model, again.data, epochs=EPOCHS)
    assert (point.complete, point.batches_delivered) == (True, 4 * SHORT)
    assert "training is complete (EarlyStopping stopped it at epoch 4)" in shown()
    # The sums are not stored at a boundary; nothing needs them any more.
    sums = {one.name for one in whole.accumulators}
    expected = {name: bits for name, bits in tensors(whole).items() if name not in sums}
    assert {name: bits for name, bits in tensors(again.cell).items() if name not in sums} == expected


def test_unused_and_new_callbacks_are_named(root, shown):
    """A learning-rate callback gets the optimizer of the train cell, here of MindSpore's."""

    def of_mindspore(epochs, *callbacks):
        network = nn.Dense(6, 3)
        model = Model(network, nn.MSELoss(), nn.Adam(network.trainable_params(), 1e-2))
        checkpoints(root).train(model, epochs, short(), callbacks=[Losses(5.0, *[4.0] * 6), *callbacks])
        return model.train_network.optimizer.learning_rate.asnumpy()

    of_mindspore(1, stopping())
    assert of_mindspore(EPOCHS, reducing()) < 1e-2
    assert "has state of a callback EarlyStopping, which this training does not use" in shown()
    assert "the callback ReduceLROnPlateau is not in the checkpoint and begins afresh" in shown()


class Prints(Callback):
    def on_train_step_end(self, run_context):
        print(run_context.original_args().cur_step_num)


class Follows(Callback):
    """Sets the rate by a mean of the losses, which it begins with the first step, and resets a count in each epoch."""

    def __init__(self, factor=0.01):
        self.factor, self.history = factor, []

    def on_train_epoch_begin(self, run_context):
        self.in_epoch = 0

    def on_train_step_end(self, run_context):
        args = run_context.original_args()
        self.mean = 0.9 * getattr(self, "mean", 1.0) + 0.1 * float(args.net_outputs.asnumpy())
        self.in_epoch += 1
        self.history.append(self.mean)
        ms.ops.assign(args.optimizer.learning_rate, ms.Tensor(self.factor * self.mean * self.in_epoch, ms.float32))


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ([Follows], [], "trains without Follows, other than the first start"),
        ([], [Follows, Prints], "trains with Follows, other than the first start"),
        ([Follows, Prints], [Follows, TimeMonitor], None),
    ],
)
def test_callbacks_of_a_start_that_the_first_one_had_not_are_named(root, caplog, first, second, said):
    """Those that only look do not count."""
    for epochs, kinds in ((1, first), (2, second)):
        life(root, *(kind() for kind in kinds), epochs=epochs)
    told = [one.message for one in caplog.records if "other than the first start" in one.message]
    assert [said in one for one in told] == ([True] if said else [])


def test_callbacks_that_nobody_gave_go_on(root):
    """In mid-epoch ``on_train_epoch_begin`` runs once more, and what it resets comes back."""
    whole, killed, resumed = ([Follows(), Follows(0.02)] for _ in range(3))
    expected = life(root.with_name("whole"), *whole, epochs=3)
    life(root, *killed, epochs=3, crash_at=SHORT + 3)
    assert tensors(life(root, *resumed, epochs=3)) == tensors(expected)
    assert [vars(callback) for callback in resumed] == [vars(callback) for callback in whole]


class Mine(EarlyStopping):
    """Goes by the class that MindSpore knows."""


def test_each_counter_of_each_callback_is_restored_once_with_its_type():
    told = [
        {"wait": 2, "stopped_epoch": 3, "best": np.float32(0.25)},
        {"wait": 5, "cooldown_counter": 1, "best": np.float32(0.5)},
        {"wait": 7},
        {"wait": 8},
    ]

    def bound():
        callbacks, companions = [stopping(), reducing(), stopping(), Mine(monitor="loss")], OtherCallbacks()
        companions.bind(callbacks)
        return callbacks, companions

    given, companions = bound()
    for callback, values in zip(given, told, strict=True):
        vars(callback).update(values)
    given[0].best_weights_param_dict = accumulation_cell().network.parameters_dict()
    assert [*companions.state_dict()] == ["EarlyStopping", "ReduceLROnPlateau", "EarlyStopping#2", "EarlyStopping#3"]
    leaves: list[Leaf] = []
    stored = encode_tree(companions.state_dict(), "user/callbacks", leaves)
    fresh, later = bound()
    later.load_state_dict(decode_tree(stored, {leaf.name: leaf.array for leaf in leaves}))
    assert (fresh[0].wait, fresh[0].best) == (0, np.inf)  # only when it has reset itself
    later.restore()
    for callback, values in zip(fresh, told, strict=True):
        assert {name: getattr(callback, name) for name in values} == values
    assert type(fresh[0].wait) is int
    best, expected = fresh[0].best_weights_param_dict, given[0].best_weights_param_dict
    assert all(isinstance(one, ms.Parameter) and one.name == name for name, one in best.items())
    assert {name: one.get_bytes() for name, one in best.items()} == {n: one.get_bytes() for n, one in expected.items()}
    fresh[0].wait = 9
    later.restore()
    assert fresh[0].wait == 9
