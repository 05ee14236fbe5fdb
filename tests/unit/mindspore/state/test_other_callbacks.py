"""EarlyStopping, ReduceLROnPlateau and other callbacks beside CheckpointCallback."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn
from mindspore.train import Callback, EarlyStopping, History, LossMonitor, Model, ReduceLROnPlateau, TimeMonitor
from support.training import (
    SIZE,
    CrashError,
    Interrupt,
    Job,
    Steps,
    Stop,
    accumulation_cell,
    begin_process,
    checkpoints,
    disturb,
    pipeline,
    tensors,
)

import ckptkit as ck
from ckptkit.core.tensors import Leaf
from ckptkit.core.tree import decode_tree, encode_tree
from ckptkit.mindspore.callback.read_only import is_idle
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


class Ramped(nn.Cell):
    def __init__(self):
        super().__init__()
        self.dense, self.active = nn.Dense(2, 1), 1

    def construct(self, x):
        return self.dense(x) * self.active


class Ramps(Callback):
    def __init__(self, network):
        self.network = network

    def on_train_step_end(self, run_context):
        self.network.active += 1


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
    assert first | second == whole
    begun = (crash_at - 1) // SHORT + 1
    assert min(second) == begun
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
    assert second == {epoch: seen for epoch, seen in whole.items() if epoch >= 3}


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
    companions.bind([stopping() for _ in range(3)], (), lambda cell: True)
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


class Keeps(Callback):
    def __init__(self):
        self.kept = 3

    def state_dict(self):
        return self.kept

    def load_state_dict(self, state):
        self.kept = state


class KeepsNothing(Callback):
    pass


def none_stored(cell):
    return False


@pytest.mark.parametrize(
    ("callback", "named"),
    [
        (Keeps, True),
        (History, True),
        (KeepsNothing, False),
        (LossMonitor, False),
        (TimeMonitor, False),
        (stopping, False),
        (reducing, False),
    ],
)
def test_callbacks_whose_state_would_be_lost_are_named(callback, named, shown):
    OtherCallbacks().bind([callback()], [], none_stored)
    assert ("may keep state that is not in the checkpoints" in shown()) == named


class Configured(Callback):
    def __init__(self, every=5, scale=0.5, name="x"):
        super().__init__()
        self.every, self.scale, self.name = every, scale, name

    def on_train_step_end(self, run_context):
        if run_context.original_args().cur_step_num % self.every == 0:
            print(self.name, self.scale)


class Counts(Configured):
    def on_train_step_end(self, run_context):
        super().on_train_step_end(run_context)
        self.every += 1


class GivesItself(Configured):
    def on_train_step_end(self, run_context):
        count(self)


def count(callback):
    callback.every += 1


@pytest.mark.parametrize(
    ("kind", "names"), [(Configured, None), (Counts, "every"), (GivesItself, "every, scale, name")]
)
def test_configuration_that_no_method_assigns_is_not_named(kind, names, shown):
    OtherCallbacks().bind([kind()], [], none_stored)
    assert ("may keep state" in shown()) == (names is not None)
    assert names is None or f"not in the checkpoints: {names}. " in shown()


class Shows(Callback):
    """Counts and collects for its table only; the parameters that it holds are the training's."""

    def __init__(self, parameters):
        super().__init__()
        self.parameters, self.losses, self.high, self.ends = parameters, [], False, (3, 5)

    def on_train_step_end(self, run_context):
        loss = run_context.original_args().net_outputs
        self.losses.append(float(loss.asnumpy()))
        self.high = self.losses[-1] > 3
        for parameter in self.parameters:
            parameter.set_data(parameter * 0.5 if run_context.original_args().cur_step_num in self.ends else parameter)

    def on_train_epoch_end(self, run_context):
        print("high" if self.high else "low", max(self.losses))


class TakesPart(Shows):
    def on_train_step_begin(self, run_context):
        self.parameters.pop()


def test_what_a_callback_only_shows_is_not_named(shown):
    cell = accumulation_cell()
    state, parameters = ck.StateManager(cell), cell.optimizer.parameters
    for given in (parameters, [*parameters]):
        OtherCallbacks().bind([Shows(given)], [], state.has_all_of)
    assert "may keep state" not in shown()
    OtherCallbacks().bind([Shows(parameters)], [], none_stored)
    OtherCallbacks().bind([TakesPart([*parameters])], [], state.has_all_of)
    assert "Shows may keep state that is not in the checkpoints: parameters." in shown()
    assert "TakesPart may keep state that is not in the checkpoints: parameters." in shown()


def test_what_another_callback_takes_from_one_that_only_shows_is_named(caplog):
    class Reads(Callback):
        def on_train_step_begin(self, run_context):
            if shows.high:
                run_context.request_stop()

    begin_process(mode="pynative")
    cell = accumulation_cell()
    shows = Shows(cell.optimizer.parameters)
    OtherCallbacks().bind([shows, Reads()], [], ck.StateManager(cell).has_all_of)
    assert "Shows may keep state that is not in the checkpoints: high." in caplog.text


def test_what_a_callback_holds_is_not_taken_for_stored(caplog):
    """A callback ramps an attribute of a cell that it holds, and that it does not reach by the context."""
    begin_process(mode="pynative")
    network = Ramped()
    cell = nn.TrainOneStepCell(nn.WithLossCell(network, nn.MSELoss()), nn.SGD(network.trainable_params(), 0.1))
    others = OtherCallbacks()
    state = ck.StateManager(cell, callbacks=others)
    ramp = Ramps(network)
    others.bind([ramp], [], none_stored)
    state.judge_callbacks([ramp], (), [ramp])
    assert "carries active" in caplog.text


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


class Climbs(Callback):
    def on_train_step_end(self, run_context):
        if run_context.original_args().cur_step_num == 4:
            self.__class__ = Cruises


class Cruises(Climbs):
    pass


def test_callback_that_becomes_another_class_is_named(shown):
    OtherCallbacks().bind([Climbs()], [], none_stored)
    assert "the callback Climbs may keep state that is not in the checkpoints: __class__" in shown()


def test_object_of_a_callback_that_is_given_by_itself_is_not_named(shown):
    noise, callback = np.random.default_rng(1), Keeps()
    callback.noise = noise
    OtherCallbacks().bind([callback], [], none_stored)
    assert "noise" in shown()
    before = len(shown())
    OtherCallbacks().bind([callback], [noise], none_stored)
    assert "noise" not in shown()[before:]


def test_only_the_callback_that_is_given_is_stored(shown):
    given = Keeps()
    OtherCallbacks().bind([given], [given], none_stored)
    assert "may keep state" not in shown()
    OtherCallbacks().bind([given, Keeps()], [given], none_stored)
    assert "may keep state" in shown()


def test_callback_stored_by_its_attributes_is_stored(shown):
    holds = Holds(None, kept=3)
    state = ck.StateManager(accumulation_cell(), holds=ck.attributes(holds, "layer", "kept"))
    OtherCallbacks().bind([holds], state.stateful_objects(), none_stored)
    assert "may keep state" not in shown()


class Holds(Callback):
    """Holds a layer, beside which it may keep something."""

    def __init__(self, layer, **kept):
        super().__init__()
        self.layer = layer
        self.take(kept)

    def take(self, kept):
        vars(self).update(kept)


def test_layer_of_the_training_is_no_lost_state(shown):
    layer = nn.BatchNorm1d(4)
    OtherCallbacks().bind([Holds(layer)], [], lambda cell: cell is layer)
    assert "may keep state" not in shown()


class Around(nn.Cell):
    """Some of its parameters are the training's."""

    def __init__(self, layer):
        super().__init__(auto_prefix=False)
        self.layer = layer
        self.own = ms.Parameter(np.zeros(1, np.float32), name="own")


def test_layer_that_is_partly_stored_is_named(shown):
    cell = accumulation_cell()
    state = ck.StateManager(cell)
    OtherCallbacks().bind([Holds(cell.network.hidden)], [], state.has_all_of)
    assert "may keep state" not in shown()
    OtherCallbacks().bind([Holds(Around(cell.network.hidden))], [], state.has_all_of)
    assert "the callback Holds may keep state that is not in the checkpoints: layer" in shown()


@pytest.mark.parametrize(
    ("kept", "named", "advice"),
    [
        ({"seen": 3}, "seen", "pass it by name: stateful={'holds': ckptkit.attributes(it, 'seen')}"),
        (
            dict.fromkeys(("a", "b", "c", "d", "e", "f"), 1),
            "a, b, c, d, e and 1 more",
            "pass it by name: stateful={'holds': ckptkit.attributes(it, 'a', 'b', 'c', 'd', 'e', 'f')}",
        ),
        (
            {"seen": object()},
            "seen",
            "give it state_dict() and load_state_dict(), and pass it by name: stateful={'holds': it}",
        ),
    ],
)
def test_advice_for_a_callback_can_be_followed(kept, named, advice, shown):
    layer = nn.BatchNorm1d(4)
    OtherCallbacks().bind([Holds(layer, **kept)], [], lambda cell: cell is layer)
    assert f"not in the checkpoints: {named}. If it matters, {advice}" in shown()


class Decay(EarlyStopping):
    """Keeps something beside what its base class keeps."""

    def __init__(self):
        super().__init__(monitor="loss", patience=100)
        self.seen = 0
        self.last = None


class Slows(Decay):
    def on_train_step_end(self, run_context):
        self.seen += 1
        self.last = run_context.original_args().cur_step_num
        if self.seen > 1000 * self.last:
            run_context.request_stop()


def test_own_state_of_a_subclass_is_named(shown):
    callback = Slows()
    callback.best = 3.0
    OtherCallbacks().bind([callback], [], none_stored)
    text = shown()
    assert "the callback Slows may keep state that is not in the checkpoints: seen, last." in text
    assert "stateful={'slows': ckptkit.attributes(it, 'seen', 'last')}" in text
    OtherCallbacks().bind([callback, Impatient(monitor="loss")], [callback], none_stored)
    assert shown() == text


def test_advice_for_a_subclass_makes_it_exact(root):
    def life(crash_at=None):
        job, callback = Job(data=short), Decay()
        ckpt = checkpoints(root, 2 * SHORT + 1, stateful={"decay": ck.attributes(callback, "seen", "last")})

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


class Impatient(EarlyStopping):
    pass


def test_callback_stored_by_name_is_not_warned_of(shown):
    callback = Keeps()
    OtherCallbacks().bind([callback], [callback], none_stored)
    assert shown() == ""


def test_state_comes_back_of_the_same_types():
    one = stopping(restore_best_weights=True)
    one.wait, one.stopped_epoch, one.best = 3, 4, np.array(0.25)
    network = accumulation_cell().network
    one.best_weights_param_dict = network.parameters_dict()
    companions = OtherCallbacks()
    companions.bind([one], [], none_stored)
    leaves: list[Leaf] = []
    stored = encode_tree(companions.state_dict(), "user/callbacks", leaves)
    other = stopping(restore_best_weights=True)
    resumed = OtherCallbacks()
    resumed.bind([other], [], none_stored)
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
    companions.bind([one], [], none_stored)
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
    companions.bind([before], [], none_stored)
    later.bind([after], [], none_stored)
    later.load_state_dict(companions.state_dict())
    later.restore()
    assert {name: getattr(after, name) for name in told} == told


def test_subclass_goes_by_the_class_that_mindspore_knows():
    class Mine(EarlyStopping):
        pass

    companions = OtherCallbacks()
    companions.bind([Mine(monitor="loss")], [], none_stored)
    assert set(companions.state_dict()) == {"EarlyStopping"}


def test_cell_of_mindspore_works_with_them_too(root):
    network = nn.Dense(6, 3)
    model = Model(network, nn.MSELoss(), nn.Adam(network.trainable_params(), 1e-2))
    rate = model.train_network.optimizer.learning_rate
    checkpoints(root).train(model, EPOCHS, short(), callbacks=[Losses(*PLATEAUS), reducing()])
    assert rate.asnumpy() < 1e-2


def test_two_callbacks_of_one_class_are_kept_apart():
    companions = OtherCallbacks()
    companions.bind([stopping(), stopping(), stopping()], [], none_stored)
    assert list(companions.state_dict()) == ["EarlyStopping", "EarlyStopping#2", "EarlyStopping#3"]


class SumsEpochs(Callback):
    """Has no attribute before its first epoch."""

    def on_train_epoch_begin(self, run_context):
        self.total = 0.0

    def on_train_step_begin(self, run_context):
        self.at = run_context.original_args().cur_step_num

    def on_train_step_end(self, run_context):
        self.total += float(run_context.original_args().net_outputs.asnumpy())


class Ends(SumsEpochs):
    def on_train_epoch_end(self, run_context):
        if self.total < 1.0:
            run_context.request_stop()


class Writes(SumsEpochs):
    def on_train_epoch_end(self, run_context):
        run_context.original_args().optimizer.learning_rate.set_data(ms.Tensor(self.total))


class Lazy(Writes):
    def on_train_step_end(self, run_context):
        if not hasattr(self, "mean"):
            self.mean = 0.0
        self.mean *= 0.9


@pytest.mark.parametrize(("kind", "names"), [(SumsEpochs, ""), (Ends, "total"), (Writes, "total"), (Lazy, "total")])
def test_what_hooks_keep_later_is_named_if_it_matters(kind, names, shown):
    OtherCallbacks().bind([kind()], [], none_stored, is_idle)
    assert ("may keep state" in shown()) == bool(names)
    assert f"not in the checkpoints: {names}." in shown() or not names
