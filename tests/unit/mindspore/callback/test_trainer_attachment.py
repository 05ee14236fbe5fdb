"""A trainer with a loop of its own, with a callback that was attached to it."""

import functools
import hashlib
import types

import mindspore as ms
import pytest
from support.looping_trainer import LoopingTrainer
from support.training import CrashError, begin_process, disturb, tensors

import ckptkit as ck

SIZE, EPOCHS = 5, 3


class Trace:
    """Notes after each micro-step all that a later one depends on. A checkpoint has its attributes."""

    def __init__(self, trainer):
        self.steps = []
        self.events = []
        trainer.callback_handler.callbacks.append(self)
        self.bits = lambda: hashlib.sha256(repr(sorted(tensors(trainer.train_model).items())).encode()).hexdigest()

    def on_epoch_begin(self, args, state, control):
        self.events.append(("begin", state.global_step))

    def on_epoch_end(self, args, state, control):
        self.events.append(("end", state.global_step))

    def on_evaluate(self, args, state, control):
        self.events.append(("evaluate", state.best_metric))

    def on_step_end(self, args, state, control):
        self.steps.append((self.bits(), state.global_step, state.epoch))

    on_substep_end = on_step_end


class Dies:
    __slots__ = ("left",)

    def __init__(self, left):
        self.left = left

    def on_step_end(self, args, state, control):
        self.left -= 1
        if self.left == 0:
            raise CrashError

    on_substep_end = on_step_end


class Stops:
    def __init__(self):
        self.evaluations = 0

    def on_evaluate(self, args, state, control):
        self.evaluations += 1
        control.should_training_stop = self.evaluations == 2


def installed(function, **renamed):
    names = tuple(renamed.get(name, name) for name in function.__code__.co_varnames)
    code = function.__code__.replace(co_filename="/site-packages/trainer.py", co_varnames=names)
    return types.FunctionType(code, function.__globals__, function.__name__, function.__defaults__)


class InstalledTrainer(LoopingTrainer):
    train = installed(LoopingTrainer.train)


class OtherTrainer(LoopingTrainer):
    """What it calls tr_loss is no sum."""

    train = installed(LoopingTrainer.train, tr_loss="total", inputs="tr_loss")


def trainer(dies_after=None, *, stops=False, kind=LoopingTrainer, **options):
    begin_process()
    looper = kind(**{"epochs": EPOCHS, "size": SIZE, **options})
    trace = Trace(looper)
    own = [Stops()] if stops else []
    looper.callback_handler.callbacks.extend(own if dies_after is None else [*own, Dies(dies_after)])
    return looper, trace


def train(ckpt, dies_after=None, *, goes_on=False, **options):
    """A process of its own, as far as its variables go; a script has a function of this name, as the trainer has."""
    looper, trace = trainer(dies_after, **options)
    if goes_on:
        disturb()
    with ckpt.attach(looper) as attached:
        return looper, trace, attached, vars(looper.train())


@functools.cache
def uninterrupted(**options):
    looper, trace = trainer(**options)
    return looper, trace, vars(looper.train())


def assert_alike(looper, trace, expected, whole):
    assert (trace.steps, trace.events) == (whole.steps, whole.events)
    for name in ("log_history", "best_metric", "global_step"):
        assert getattr(looper.state, name) == getattr(expected.state, name), name
    assert looper._total_loss_scalar == expected._total_loss_scalar
    assert tensors(looper.train_model) == tensors(expected.train_model)


def checkpoints(root, at=100, **options):
    options.setdefault("training", ck.Training(ignore=["Dies*"]))  # how long a process lives
    return ck.CheckpointCallback(str(root / "run"), save=ck.SaveEvery(micro_steps=at), **options)


@pytest.mark.parametrize(
    ("options", "at", "ends"),
    [
        *[({"k": 1}, 5, 3), ({"k": 2, "kind": OtherTrainer}, 10, 2.4), ({"k": 3, "kind": InstalledTrainer}, 7, 1.8)],
        *[({"max_steps": 4}, 6, 1.6), ({"stops": True}, 7, 2)],
    ],
)
def test_trainer_resumes_exactly(tmp_path, caplog, options, at, ends):
    expected, whole, result = uninterrupted(**options)
    assert expected.state.epoch == pytest.approx(ends)
    with pytest.raises(CrashError):
        train(checkpoints(tmp_path, at), at + 1, **options)
    for complete in (False, True):
        restarted, trace, attached, returned = train(checkpoints(tmp_path), goes_on=True, **options)
        assert returned == result
        assert attached.point.complete is complete
        assert complete or attached.point.batches_delivered == at
        assert_alike(restarted, trace, expected, whole)
    assert "in no checkpoint" not in caplog.text


def test_more_epochs_continue_a_complete_run(tmp_path):
    """What the loop counted until it returned, in the middle of a cycle, is stored, too."""
    options = {"kind": InstalledTrainer, "max_steps": 100}
    expected, whole, _ = uninterrupted(**options)
    for epochs in (1, EPOCHS):
        restarted, trace, *_ = train(checkpoints(tmp_path), epochs=epochs, **options)
    assert trace.steps == whole.steps
    assert restarted._total_loss_scalar == pytest.approx(expected._total_loss_scalar)
    assert tensors(restarted.train_model) == tensors(expected.train_model)


@pytest.mark.parametrize("at", [3, 5])
def test_preempted_training_returns_and_resumes(tmp_path, at):
    expected, whole, _ = uninterrupted()
    steps = iter(range(1, 100))
    ckpt = checkpoints(tmp_path, preemption=ck.Preemption(then="return", when=lambda: next(steps) >= at))
    _, _, attached, _ = train(ckpt)
    assert ckpt.preempted
    assert attached.preempted
    restarted, trace, attached, _ = train(checkpoints(tmp_path))
    assert attached.point.batches_delivered in (at, at + 1)  # the end of the cycle
    assert_alike(restarted, trace, expected, whole)


def test_second_training_of_a_trainer_is_refused(tmp_path):
    """A failed one may be called again."""
    expected, whole, _ = uninterrupted()
    looper, trace = trainer(4)
    attached = checkpoints(tmp_path, 2).attach(looper)
    with pytest.raises(CrashError):
        looper.train()
    looper.train()
    assert_alike(looper, trace, expected, whole)
    with pytest.raises(ck.ResumeError, match="called a second time"):
        looper.train()
    with pytest.raises(ck.ResumeError, match="is attached to this LoopingTrainer already"):
        checkpoints(tmp_path / "other").attach(looper)
    attached.detach()
    looper.train()
    assert not {"train", "training_step", "get_train_dataloader"} & vars(looper).keys()


class EndsEpoch:
    def on_step_end(self, args, state, control):
        control.should_epoch_stop = state.global_step == 1


def test_what_cannot_be_resumed_is_refused(tmp_path):
    def twice(it):
        it.floating_point_ops = lambda inputs: it.training_step(it.train_model, inputs)[0].asnumpy()

    for alter, message, trained in (
        (lambda it: setattr(it, "get_train_dataloader", lambda: [1, 2, 3]), "returned a list", 0),
        (lambda it: setattr(it, "around", lambda made: (row for row in made)), "through more than enumerate", 0),
        (lambda it: setattr(it, "around", lambda made: map(dict, made)), "through more than enumerate", 0),
        (lambda it: it.callback_handler.callbacks.append(EndsEpoch()), "ended after 2 of its 5 batches", 2),
        (twice, "took 1 batches, but called training_step for 2", 1),
    ):
        looper, trace = trainer()
        alter(looper)
        with pytest.raises(ck.ResumeError, match=message), checkpoints(tmp_path / message).attach(looper):
            looper.train()
        assert len(trace.steps) == trained, message
    looper, trace = trainer()
    with pytest.raises(ck.ResumeError, match="leave resume_from_checkpoint out"), checkpoints(tmp_path).attach(looper):
        looper.train(resume_from_checkpoint="checkpoint-10")
    assert trace.steps == []
    with pytest.raises(ck.ResumeError, match=r"nothing in this process called LoopingTrainer\.train"):  # noqa: SIM117
        with checkpoints(tmp_path).attach(looper):
            pass
    with pytest.raises(TypeError, match="has no train, get_train_dataloader"):
        checkpoints(tmp_path).attach(object())


def test_mindspore_gets_its_parameter_class_back(tmp_path):
    looper, _ = trainer(epochs=1)
    parameter = ms.Parameter

    def floating_point_ops(inputs):
        ms.Parameter = looper.model.trainable_params()[0]
        return 1

    looper.floating_point_ops = floating_point_ops
    try:
        with checkpoints(tmp_path).attach(looper):
            looper.train()
        assert ms.Parameter is parameter
    finally:
        ms.Parameter = parameter
