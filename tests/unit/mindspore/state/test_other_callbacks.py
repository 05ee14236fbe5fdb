"""EarlyStopping, ReduceLROnPlateau and other callbacks beside CheckpointCallback."""

from __future__ import annotations

import contextlib

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn
from mindspore.train import Callback, EarlyStopping, Model, ReduceLROnPlateau, TimeMonitor
from support.training import (
    SIZE,
    CrashError,
    Interrupt,
    Job,
    Steps,
    Stop,
    accumulation_cell,
    checkpoints,
    disturb,
    pipeline,
    tensors,
)

import ckptkit as ck
from ckptkit.core.tensors import Leaf
from ckptkit.core.tree import decode_tree, encode_tree
from ckptkit.mindspore.state.other_callbacks import OtherCallbacks

EPOCHS = 7


class Losses(Callback):
    """Stands in for the loss of each epoch, so that a test decides when nothing improves any more."""

    def __init__(self, *by_epoch):
        self.by_epoch = by_epoch

    def on_train_epoch_end(self, run_context):
        params = run_context.original_args()
        params.net_outputs = ms.Tensor(self.by_epoch[params.cur_epoch_num - 1], ms.float32)


class Watch(Callback):
    """Notes the state of one callback after each epoch, and the learning rate."""

    def __init__(self, watched):
        self.watched = watched
        self.seen = {}

    def on_train_epoch_end(self, run_context):
        params = run_context.original_args()
        names = ("wait", "stopped_epoch", "cooldown_counter")
        state = tuple(getattr(self.watched, name, None) for name in names)
        rate = params.train_network.optimizer.learning_rate.asnumpy()
        self.seen[params.cur_epoch_num] = (*state, float(self.watched.best), rate.tobytes())


def run(root, make, losses, *extra, crash_at=None):
    """One life of a training with the callback that ``make`` gives; returns what was seen of it, and the job."""
    job, companion = Job(data=short), make()
    watch = Watch(companion)
    if crash_at is None:
        disturb()
    ckpt = checkpoints(root, crash_at - 1 if crash_at else 1000)
    others = [Losses(*losses), *extra, companion, watch, *([Interrupt(crash_at)] if crash_at else [])]
    try:
        ckpt.train(job.model, EPOCHS, job.data, callbacks=others)
    except CrashError:
        assert crash_at
    return watch.seen, job


SHORT = 3  # batches per epoch


def short():
    return pipeline(4 * SHORT)


def stopping(**options):
    return EarlyStopping(monitor="loss", patience=2, **options)


def reducing():
    return ReduceLROnPlateau(monitor="loss", factor=0.5, patience=2, cooldown=1)


FALLING = (5.0, 4.0, 4.0, 3.5, 3.5, 3.5, 1.0)
PLATEAUS = (5.0, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0)


@pytest.mark.covering(1)
@pytest.mark.parametrize(
    ("make", "losses"), [(stopping, FALLING), (reducing, PLATEAUS)], ids=["EarlyStopping", "ReduceLROnPlateau"]
)
@pytest.mark.parametrize(
    "crash_at",
    [2 * SHORT + 2, 3 * SHORT + 1, *(pytest.param(3 * SHORT + n, marks=pytest.mark.extended) for n in (2, SHORT + 3))],
)
def test_callback_state_survives_reset_in_on_train_begin(root, make, losses, crash_at):
    whole, whole_job = run(root.with_name("whole"), make, losses)
    first, _ = run(root, make, losses, crash_at=crash_at)
    second, job = run(root, make, losses)
    assert second == whole
    assert first == {epoch: seen for epoch, seen in whole.items() if epoch <= (crash_at - 1) // SHORT}
    assert tensors(job.cell) == tensors(whole_job.cell)


def test_the_losses_above_do_what_they_are_for(root):
    stopped, _ = run(root.with_name("stopping"), stopping, FALLING)
    assert max(stopped) == 6
    assert [one[0] for one in stopped.values()] == [0, 0, 1, 0, 1, 2]
    reduced, _ = run(root.with_name("reducing"), reducing, PLATEAUS)
    assert len({one[-1] for one in reduced.values()}) == 3


def test_early_stop_is_the_end_of_the_run(root, shown):
    _, first = run(root, stopping, FALLING)
    steps = Steps()
    job = Job(data=short)
    point = checkpoints(root).train(job.model, EPOCHS, job.data, callbacks=[stopping(), steps])
    assert point.complete
    assert steps.begun == 0
    assert "training is complete (EarlyStopping stopped it at epoch 6); nothing to do" in shown()
    assert tensors(job.cell) == tensors(first.cell)
    assert point.batches_delivered == 6 * SHORT


@pytest.mark.parametrize("crash_at", [2, 3 * SHORT + 2])
def test_best_weights_go_on_and_are_restored(root, crash_at):
    def keeping():
        return stopping(restore_best_weights=True)

    best = (5.0, 1.0, 4.0, 3.5, 3.5, 3.5, 1.0)
    _, whole = run(root.with_name("whole"), keeping, best)
    run(root, keeping, best, crash_at=crash_at)
    _, job = run(root, keeping, best)
    assert tensors(job.cell) == tensors(whole.cell)
    again = Job(data=short)
    assert checkpoints(root).resume(again.model, again.data, epochs=EPOCHS).complete
    # The sums are not stored at a boundary; nothing needs them any more.
    sums = {one.name for one in whole.cell.accumulators}
    expected = {name: bits for name, bits in tensors(whole.cell).items() if name not in sums}
    assert {name: bits for name, bits in tensors(again.cell).items() if name not in sums} == expected


def test_half_epoch_does_not_count_as_whole(root):
    whole, _ = run(root.with_name("whole"), stopping, FALLING)
    half, _ = run(root, stopping, FALLING, Stop(2 * SHORT + 2))
    # MindSpore fires on_train_epoch_end at the half epoch too: the callback counts it, the checkpoint does not.
    assert half[3][0] == 1
    second, _ = run(root, stopping, FALLING)
    assert second == whole


def test_half_epoch_does_not_complete_the_run(root):
    class Impatient(EarlyStopping):
        pass

    def impatient():
        return Impatient(monitor="loss", patience=1)

    losses = (5.0, 4.0, 4.0, 3.0, 2.0, 1.0, 0.5)
    half, _ = run(root, impatient, losses, Stop(2 * SHORT + 2))
    assert half[3][1] == 3  # stopped for want of improvement, by a loss of half an epoch
    job = Job(data=short)
    assert not checkpoints(root).resume(job.model, job.data, epochs=EPOCHS).complete


def test_half_epoch_keeps_restored_learning_rate(root):
    """A learning rate that a half epoch changed is not that of the resumed run."""

    def reducing_at_once():
        return ReduceLROnPlateau(monitor="loss", factor=0.5, patience=1)

    half, _ = run(root, reducing_at_once, (5.0, 4.5, 4.5, 3.0, 2.0, 1.0, 0.5), Stop(2 * SHORT + 2))
    assert half[3][-1] != half[2][-1]
    job = Job(data=short)
    checkpoints(root).resume(job.model, job.data, epochs=EPOCHS)
    assert job.cell.optimizer.learning_rate.asnumpy().tobytes() == half[2][-1]


def test_two_of_a_kind_keep_apart(root):
    def life(crash_at=None):
        job = Job(data=short)
        both = [stopping(), EarlyStopping(monitor="loss", patience=5, min_delta=100)]
        watches = [Watch(one) for one in both]
        ckpt = checkpoints(root, 3 * SHORT)
        extra = [Interrupt(crash_at)] if crash_at else []
        try:
            ckpt.train(job.model, 5, job.data, callbacks=[Losses(*FALLING), *both, *watches, *extra])
        except CrashError:
            assert crash_at
        return [watch.seen for watch in watches]

    life(crash_at=3 * SHORT + 1)
    first, second = life()
    assert first[4][0] == 0
    assert second[4][0] == 3  # its minimum of 100 was beaten in the first epoch only


def test_three_of_a_kind_keep_apart():
    companions = OtherCallbacks()
    companions.bind([stopping() for _ in range(3)])
    assert [*companions.state_dict()] == ["EarlyStopping", "EarlyStopping#2", "EarlyStopping#3"]


def test_unused_callback_with_stored_state_is_named(root, shown):
    run(root, stopping, FALLING, crash_at=SHORT + 2)
    job = Job(data=short)
    checkpoints(root).train(job.model, 3, job.data)
    assert "has state of a callback EarlyStopping, which this training does not use" in shown()


def test_new_callback_is_named_and_begins_afresh(root, shown):
    job = Job(data=short)
    checkpoints(root).train(job.model, 1, job.data)
    job = Job(data=short)
    callback = stopping()
    checkpoints(root).train(job.model, 2, job.data, callbacks=[callback])
    assert "the callback EarlyStopping is not in the checkpoint and begins afresh" in shown()
    assert callback.wait == 0


@pytest.mark.parametrize("make", [stopping, reducing])
def test_after_the_checkpoint_callback_they_are_refused(root, make):
    job, ckpt, steps = Job(), checkpoints(root), Steps()
    ckpt.resume(job.model, job.data, epochs=1)
    with pytest.raises(ck.ResumeError, match=rf"{type(make()).__name__} would change .*put CheckpointCallback last"):
        job.model.train(1, job.data, callbacks=[steps, ckpt, make()])
    assert steps.begun == 0


def test_learning_rate_callbacks_get_optimizer_of_cell(root):
    seen = []

    class Looks(Callback):
        def on_train_step_begin(self, run_context):
            seen.append(run_context.original_args().optimizer)

    job = Job()
    with pytest.raises(AttributeError):
        job.model.train(1, job.data, callbacks=[reducing()])
    job = Job()
    checkpoints(root).train(job.model, 1, job.data, callbacks=[Looks()])
    assert seen == [job.cell.optimizer] * SIZE


class WarmUp(Callback):
    def on_train_step_begin(self, run_context):
        args = run_context.original_args()
        args.optimizer.learning_rate.set_data(ms.Tensor(0.01 * args.cur_step_num, ms.float32))


class Prints(Callback):
    def on_train_step_end(self, run_context):
        print(run_context.original_args().cur_step_num)


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ([WarmUp], [], "trains without WarmUp, other than the first start"),
        ([], [WarmUp], "trains with WarmUp, other than the first start"),
        ([WarmUp], [WarmUp], None),
        ([Prints], [TimeMonitor], None),
    ],
)
def test_callbacks_of_a_start_that_the_first_one_had_not_are_named(root, caplog, first, second, said):
    """Those that only look do not count."""
    for kinds in (first, second):
        job = Job(data=short)
        ckpt = checkpoints(root, 2 * SHORT + 1)
        others = [kind() for kind in kinds]
        ckpt.train(job.model, 2 if kinds is first else 3, job.data, callbacks=others)
    told = [one.message for one in caplog.records if "other than the first start" in one.message]
    assert [said in one for one in told] == ([True] if said else [])


class Decay(EarlyStopping):
    """Keeps something beside what its base class keeps."""

    def __init__(self):
        super().__init__(monitor="loss", patience=100)
        self.seen = 0
        self.last = None


@pytest.mark.parametrize("is_given", [True, False])
def test_own_state_of_a_subclass_goes_on(root, is_given):
    def life(crash_at=None):
        job, callback = Job(data=short), Decay()
        stateful = {"decay": ck.attributes(callback, "seen", "last")} if is_given else None
        ckpt = checkpoints(root, 2 * SHORT + 1, stateful=stateful)

        class Sees(Callback):
            def on_train_epoch_end(self, run_context):
                callback.seen += 1

        try:
            others = [Losses(*FALLING), callback, Sees(), *([Interrupt(crash_at)] if crash_at else [])]
            ckpt.train(job.model, 4, job.data, callbacks=others)
        except CrashError:
            assert crash_at
        return callback

    life(crash_at=2 * SHORT + 2)
    resumed = life()
    assert resumed.seen == 4
    assert resumed.best == 3.5


class Follows(Callback):
    """Sets the rate by a mean of the losses, which it begins with the first step, and resets a count in each epoch."""

    def on_train_epoch_begin(self, run_context):
        self.in_epoch = 0

    def on_train_step_end(self, run_context):
        args = run_context.original_args()
        self.mean = 0.9 * getattr(self, "mean", 1.0) + 0.1 * float(args.net_outputs.asnumpy())
        self.in_epoch += 1
        ms.ops.assign(args.optimizer.learning_rate, ms.Tensor(0.01 * self.mean * self.in_epoch, ms.float32))


@pytest.mark.parametrize("crash_at", [SHORT + 2, 2 * SHORT + 1])
def test_callback_that_nobody_gave_goes_on(root, crash_at):
    """In mid-epoch ``on_train_epoch_begin`` runs once more, and what it resets comes back."""

    def life(root, crash_at=None):
        job, callback = Job(data=short), Follows()
        others = [callback, *([Interrupt(crash_at)] if crash_at else [])]
        with contextlib.suppress(CrashError):
            checkpoints(root, crash_at - 1 if crash_at else 1000).train(job.model, 3, job.data, callbacks=others)
        return vars(callback), tensors(job.cell)

    whole = life(root.with_name("whole"))
    life(root, crash_at)
    disturb()
    assert life(root) == whole


def test_state_comes_back_of_the_same_types():
    one = stopping(restore_best_weights=True)
    one.wait, one.stopped_epoch, one.best = 3, 4, np.array(0.25)
    network = accumulation_cell().network
    one.best_weights_param_dict = network.parameters_dict()
    companions = OtherCallbacks()
    companions.bind([one])
    leaves: list[Leaf] = []
    stored = encode_tree(companions.state_dict(), "user/callbacks", leaves)
    other = stopping(restore_best_weights=True)
    resumed = OtherCallbacks()
    resumed.bind([other])
    resumed.load_state_dict(decode_tree(stored, {leaf.name: leaf.array for leaf in leaves}))
    assert (other.wait, other.best) == (0, np.inf)  # only when it has reset itself
    resumed.restore()
    assert (type(other.wait), other.wait, other.stopped_epoch) == (int, 3, 4)
    assert float(other.best) == 0.25
    best = other.best_weights_param_dict
    assert {name: (one.name, one.asnumpy().tobytes()) for name, one in best.items()} == {
        name: (name, one.asnumpy().tobytes()) for name, one in network.parameters_dict().items()
    }
    assert all(isinstance(one, ms.Parameter) for one in best.values())


def test_restoring_happens_once():
    one = stopping()
    companions = OtherCallbacks()
    companions.bind([one])
    companions.load_state_dict({"EarlyStopping": {"wait": np.array(2)}})
    companions.restore()
    one.wait = 9
    companions.restore()
    assert one.wait == 9


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (stopping, {"wait": 2, "stopped_epoch": 3, "best": np.float32(0.25)}),
        (reducing, {"wait": 2, "cooldown_counter": 1, "best": np.float32(0.25)}),
    ],
    ids=["EarlyStopping", "ReduceLROnPlateau"],
)
def test_each_counter_of_a_callback_is_stored(make, told):
    before, after = make(), make()
    for name, value in told.items():
        setattr(before, name, value)
    companions, later = OtherCallbacks(), OtherCallbacks()
    companions.bind([before])
    later.bind([after])
    later.load_state_dict(companions.state_dict())
    later.restore()
    assert {name: getattr(after, name) for name in told} == told


def test_subclass_goes_by_the_class_that_mindspore_knows():
    class Mine(EarlyStopping):
        pass

    companions = OtherCallbacks()
    companions.bind([Mine(monitor="loss")])
    assert set(companions.state_dict()) == {"EarlyStopping"}


def test_cell_of_mindspore_works_with_them_too(root):
    network = nn.Dense(6, 3)
    model = Model(network, nn.MSELoss(), nn.Adam(network.trainable_params(), 1e-2))
    rate = model.train_network.optimizer.learning_rate
    checkpoints(root).train(model, EPOCHS, short(), callbacks=[Losses(*PLATEAUS), reducing()])
    assert rate.asnumpy() < 1e-2
