"""What a training around the checkpoints does that would make a resumed run differ: undone, refused, or named."""

import contextlib
import functools
import os
from datetime import datetime, timezone
from inspect import signature
from itertools import pairwise
from types import SimpleNamespace

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
import pytest
from mindspore import nn, ops
from mindspore.train import Callback, EarlyStopping, LambdaCallback, LossMonitor, RunContext, TimeMonitor
from support.loaders import Rows
from support.options import grouped
from support.training import NOTES, SIZE, Job, K, accumulation_cell, checkpoints, crashed, pipeline, reference, tensors

import ckptkit as ck
from ckptkit.format.events import Began, Ended, Point
from ckptkit.mindspore.callback.session import TrainingSession, hold_back, may_stop, metrics_of
from ckptkit.run import attempt
from ckptkit.run.event_log import read_events
from ckptkit.run.index import Documents
from ckptkit.storage import open_storage
from ckptkit.tools.report.health import judge
from ckptkit.tools.report.history import read_story


def names_of(kind, begin):
    gathered = signature(kind).parameters.items()
    return [name for name, item in gathered if item.kind is not item.VAR_KEYWORD][begin:]


class Changing(Callback):
    def on_train_begin(self, run_context):
        np.random.rand()
        ops.assign(run_context.original_args().train_network.optimizer.learning_rate, ms.Tensor(0.5, ms.float32))

    def on_train_epoch_begin(self, run_context):
        np.random.rand()
        rate = run_context.original_args().train_network.optimizer.learning_rate
        ops.assign(rate, rate * 0.5)


def test_changes_in_begin_hooks_happen_once(root):
    expected = Job().uninterrupted(2, Changing()).steps
    for at in (3, SIZE + 1, SIZE + 4):  # within an epoch, and at the end of one, where the next beginning is due
        crashed(root, at, 2, Changing())
    assert Job().resumed(checkpoints(root), 2, Changing()).steps == {
        step: expected[step] for step in range(SIZE + 4, 2 * SIZE + 1)
    }


class Resetting(Callback):
    level = 5.0

    def on_train_begin(self, run_context):
        self.level = -1.0

    def on_train_step_end(self, run_context):
        self.level += 1.0


def test_object_given_by_name_is_put_back_after_begin_hooks(root):
    """By its two methods alone."""

    def named(callback):
        load = functools.partial(setattr, callback, "level")
        return {"level": SimpleNamespace(state_dict=lambda: callback.level, load_state_dict=load)}

    before, after = Resetting(), Resetting()
    crashed(root, 3, 1, before, stateful=named(before))
    Job().resumed(checkpoints(root, stateful=named(after), ignore=[*NOTES, "Resetting*"]), 1, after)
    assert after.level == SIZE - 1


def test_changed_epoch_length_ends_training(root):
    for first in (8, 16):
        source = Rows(first, *[12] * 3, columns=2)
        job = Job(data=lambda source=source: ds.GeneratorDataset(source, ["x", "y"]).batch(4))
        with pytest.raises(ck.ResumeError, match=r"an epoch has \d batches, but epoch \d has another number"):
            job.started(checkpoints(root / str(first)), 3)


def test_relative_root_is_resolved_when_callback_is_made(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    ckpt = checkpoints("run")
    Job().started(ckpt, 1)
    os.chdir(tmp_path / "there")
    trace = Job().resumed(ckpt, 2)
    assert trace.steps == {step: reference()[step] for step in range(SIZE + 1, 2 * SIZE + 1)}
    assert list((tmp_path / "there").iterdir()) == []


def test_wrong_resume_arguments_are_refused_before_write(root):
    job = Job()
    for arguments, error, message in (
        ((job.cell, job.data, 2), TypeError, r"takes a mindspore\.train\.Model .* AccumulationTrainCell"),
        ((job.data, job.model, 2), TypeError, r"takes a mindspore\.train\.Model"),
        ((job.model, [1, 2], 2), TypeError, r"a mindspore\.dataset pipeline, got Model and list"),
        ((job.model, job.data, 0), ValueError, r"at least 1, got 0"),
        ((job.model, job.data, True), ValueError, r"at least 1, got True"),
        ((job.model, job.data, 2.0), ValueError, r"at least 1, got 2\.0"),
    ):
        with pytest.raises(error, match=message):
            checkpoints(root).resume(*arguments)
    assert not root.exists()


def test_wrong_callback_options_are_refused_at_construction(root):
    taken = [*names_of(ck.StateManager, 0), "callbacks", "trainer_loop"]
    for given, options, message in (
        (root, {"save": 100}, r"save must be a policy such as SaveEvery"),
        (root, {"keep": 3}, r"keep must be a policy"),
        (root, {"when_busy": "never"}, "when_busy"),
        *((root, {"stateful": {name: object()}}, rf"needs itself: {name}") for name in taken),
        ("", {}, "the run root is empty"),
        ("nowhere://bucket/run", {}, r"nowhere://"),
    ):
        with pytest.raises((ValueError, ck.StorageError), match=message):
            ck.CheckpointCallback(given, **grouped(**options))


def test_every_option_reaches_what_it_is_for(root):
    ranks, training = ck.Ranks(check_replicas=True), ck.Training(augmentation="stateless", read_only=[Changing])
    for_the_manager = {
        "save": ck.SaveEvery(micro_steps=7),
        "keep": ck.KeepLatest(5),
        "saving": ck.Saving(when_busy="wait"),
        "mirror": (ck.Mirror(root.with_name("mirror"), required=False),),
        "ranks": ranks,
        "preemption": ck.Preemption(then="return"),
    }
    for_the_state = {"frozen": ("a",), "strict": True, "training": training, "ranks": ranks}
    once = {"frozen": iter(["a"])}  # but asked for at each resume
    full = ck.CheckpointCallback(root, **for_the_manager | for_the_state | once)
    assert vars(full)["_new_manager"].keywords == for_the_manager
    assert vars(full)["_new_state"].keywords == for_the_state
    assert vars(full)["_training"].read_only == (Changing,)
    own = {"storage_options", "stateful"}
    assert for_the_manager.keys() | for_the_state.keys() | own == {*names_of(ck.CheckpointCallback, 1)}


def test_what_does_not_train_restores_process_settings(root):
    def started(start, error=None):
        job = Job(seed=None)
        before = ds.config.get_seed(), ds.config.get_fast_recovery()
        with pytest.raises(error) if error else contextlib.nullcontext():
            start(job)
        assert (ds.config.get_seed(), ds.config.get_fast_recovery()) == before
        assert job.data.get_init_step() == 0
        assert "create_tuple_iterator" not in vars(job.data)

    def fail(*given):
        raise KeyError("no")

    held = {"held": SimpleNamespace(state_dict=lambda: {"count": 1}, load_state_dict=fail)}
    # Of Model.train, before any callback was called.
    started(lambda job: checkpoints(root).train(job.model, 2, job.data, no_such_option=1), TypeError)
    started(lambda job: job.started(checkpoints(root, stateful=held), 1))
    started(lambda job: checkpoints(root, stateful=held).resume(job.model, job.data, 2), KeyError)
    other = root.with_name("other")
    started(lambda job: job.started(checkpoints(other), 1))
    started(lambda job: checkpoints(other).resume(job.model, job.data, 1))


# A request to stop is held back and made again, as `Model.train` sees it


def test_stop_request_kept_elsewhere_is_an_error():
    class Moved(RunContext):
        def get_stop_requested(self):
            return True

    assert not hold_back(RunContext({}))
    with pytest.raises(AttributeError, match="elsewhere"):
        hold_back(Moved({}))


def test_exact_type_tells_whether_callback_may_stop():
    mine = type("Mine", (LossMonitor,), {})
    assert not any(map(may_stop, (LossMonitor(), TimeMonitor())))
    assert all(map(may_stop, (mine(), EarlyStopping(), LambdaCallback(), Callback())))


class OfTwo(TrainingSession):
    """A session of which only the agreement on a stop is there; the other rank wishes what is told."""

    def __init__(self, other=False, *, may_stop=True):
        self.asked = []
        self.other = other
        self.manager = SimpleNamespace(ranks=2, agree=self._agree)
        self._state = SimpleNamespace(progress=lambda: SimpleNamespace(at_boundary=self.at_boundary))
        self._may_stop = may_stop
        self._wants_stop = False
        self.at_boundary = False

    def _agree(self, wish):
        self.asked.append(wish)
        return wish or self.other

    def stops(self, context, *, at_boundary):
        self.at_boundary = at_boundary
        return self._stops_here(context)


def test_mid_cycle_stop_request_waits_for_boundary():
    session, context = OfTwo(), RunContext({})
    for _ in range(2):  # again, in the same cycle
        context.request_stop()
        assert not session.stops(context, at_boundary=False)
        assert not context.get_stop_requested()
    assert session.asked == []
    assert session.stops(context, at_boundary=True)
    assert context.get_stop_requested()
    context._stop_requested = False
    assert not session.stops(context, at_boundary=True), "it was carried out"
    assert session.asked == [True, False]


def test_all_ranks_stop_where_one_wishes():
    for other, options, asked in ((True, {}, [False]), (False, {}, [False]), (False, {"may_stop": False}, [])):
        session, context = OfTwo(other, **options), RunContext({})
        assert not session.stops(context, at_boundary=False)
        assert session.stops(context, at_boundary=True) == other == context.get_stop_requested()
        assert session.asked == asked


# What it records is what the training computed, and recording changes no bit of it


class Watch(Callback):
    def __init__(self):
        self.losses, self.norms = [], []

    def on_train_step_end(self, run_context):
        params = run_context.original_args()
        self.losses.append(float(params.net_outputs.asnumpy()))
        if params.train_network.updated:
            self.norms.append(float(params.train_network.gradient_norm.asnumpy()))


def recorded(root, *callbacks, epochs=1, remainder="carry", **options):
    job = Job(data=lambda: pipeline(40), cell=lambda: accumulation_cell(K, clip_norm=1.0, remainder=remainder))
    watch = Watch()
    ckpt = checkpoints(root, save=ck.SaveEvery(optimizer_steps=2), read_only=[Watch], ignore=(), **options)
    ckpt.train(job.model, epochs, job.data, callbacks=[watch, *callbacks])
    return watch, tensors(job.cell)


def events_in(root, kind):
    storage = open_storage(root)
    files = read_events(storage, Documents(storage))
    assert not files.problems
    return [event for segment in files.segments for event in segment.events if isinstance(event, kind)]


def test_recording_is_accurate_and_changes_no_bit(tmp_path):
    """Of 20 batches; a flush ends each epoch of 10 with a cycle of 2."""
    for remainder, ends in (("carry", [4, 8, 12, 16, 20]), ("flush", [4, 8, 10, 14, 18, 20])):
        watch, bits = recorded(tmp_path / remainder, epochs=2, remainder=remainder)
        points = events_in(tmp_path / remainder, Point)
        assert [point.last for point in points] == list(range(1, len(ends) + 1))
        means = [sum(watch.losses[begin:end]) / (end - begin) for begin, end in pairwise([0, *ends])]
        assert [point.values["loss"].mean for point in points] == means, remainder
        norms = [point.values["gradient_norm"].mean for point in points]
        seen = [norm for end, norm in zip(ends, norms, strict=True) if end % 10 or remainder == "carry"]
        assert seen == watch.norms, "a callback does not see that of a flush"
    _, other = recorded(tmp_path / "without", epochs=2, remainder=remainder, events=False)
    assert bits == other
    assert not (tmp_path / "without/events").exists()


def test_repeated_steps_record_identical_points(tmp_path):
    def interrupt(run_context):
        if run_context.original_args().cur_step_num == 22:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):  # in mid-cycle; the last save is of step 4
        recorded(tmp_path, LambdaCallback(on_train_step_end=interrupt), epochs=3)
    recorded(tmp_path, epochs=3)
    assert [began.progress.updates for began in events_in(tmp_path, Began)] == [0, 4]
    points = events_in(tmp_path, Point)
    assert [point.last for point in points] == [1, 2, 3, 4, 5, 5, 6, 7]
    assert points[4].values == points[5].values


def test_second_start_of_complete_training_says_so(tmp_path, monkeypatch):
    for _ in range(2):
        recorded(tmp_path)
    assert [event.how for event in events_in(tmp_path, Ended)] == ["finished", "complete"]
    story = read_story(open_storage(tmp_path), datetime.now(timezone.utc))
    assert judge(story).headline == "The training is complete: the last attempt found nothing left to do."
    assert judge(story).bad == []
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    monkeypatch.setattr(attempt, "sign_of_life", lambda *_: "attempt 1 on another machine")
    recorded(tmp_path)  # and takes nothing from a living process
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_metrics_of_a_model_are_found():
    model = ms.Model(nn.Dense(1, 1), nn.MSELoss(), metrics={"mae": nn.MAE()})
    assert [type(metric) for metric in metrics_of(model)] == [nn.MAE]
