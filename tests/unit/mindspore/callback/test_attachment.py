"""A training that somebody else starts, with a callback that was attached before."""

import functools
import inspect
import multiprocessing

import pytest
from mindspore.train import Callback, Model
from support.training import SIZE, CrashError, Interrupt, Job, checkpoints, disturb, later, reference

import ckptkit as ck
from ckptkit.manager.process import AT_EXIT

OWN = {name: inspect.getattr_static(Model, name) for name in ("train", "fit")}


@pytest.fixture(autouse=True)
def _model_as_before():
    reference()  # trained now, since what a test attaches would get it
    yield
    after = {name: inspect.getattr_static(Model, name) for name in OWN}
    for name, method in OWN.items():  # also after a test that failed
        setattr(Model, name, method)
    assert after == OWN


class Framework:
    """Calls ``Model`` as frameworks do, with arguments of its own."""

    def __init__(self, job, **options):
        self.job, self.options = job, {"dataset_sink_mode": False, "sink_size": -1, "initial_epoch": 0, **options}

    def run(self, epochs=3, *callbacks):
        job = self.job
        job.model.train(epochs, job.data, callbacks=[job.trace, *callbacks], **self.options)
        return job.trace.steps


def first_epoch():
    return {step: bits for step, bits in reference().items() if step <= SIZE}


def test_training_of_a_framework_resumes_exactly(tmp_path):
    with checkpoints(tmp_path, 17).attach():
        with pytest.raises(CrashError):
            Framework(Job()).run(3, Interrupt(18))
        job = Job()  # a failed training goes on in the same process
        disturb()
        with pytest.raises(CrashError):
            Framework(job).run(3, Interrupt(22))
    job = Job()
    disturb()
    with checkpoints(tmp_path, 17).attach() as attached:
        assert Framework(job).run() == later(reference(), 17)
    assert attached.point.batches_delivered == 17


def test_training_with_evaluations_resumes_exactly(tmp_path):
    def run(*callbacks):
        job = Job(fit=True)
        job.model.fit(2, job.data, job.valid, 2, [job.trace, *callbacks])
        return job.trace.steps

    expected = run()
    with pytest.raises(CrashError), checkpoints(tmp_path, 15).attach():
        run(Interrupt(16))
    with checkpoints(tmp_path, 15).attach():
        assert run() == later(expected, 15)


def test_one_line_before_the_training_is_enough(tmp_path):
    attached = checkpoints(tmp_path).attach()
    assert Framework(Job()).run(1) == first_epoch()
    attached.detach()
    restarted = checkpoints(tmp_path).attach()
    assert Framework(Job()).run(1) == {}  # it is complete
    assert restarted.point.complete
    restarted.detach()
    restarted.detach()


def test_callback_that_the_framework_made_is_used_once(tmp_path):
    """A framework may make and attach it from its configuration; it comes last."""

    class Looks(Callback):
        def on_train_begin(self, run_context):
            seen.extend(run_context.original_args().list_callback)

    ckpt, job, seen = checkpoints(tmp_path), Job(), []
    with ckpt.attach():
        job.model.train(1, job.data, [ckpt, job.trace, Looks()])
    assert job.trace.steps == first_epoch()
    assert [item for item in seen if isinstance(item, ck.CheckpointCallback)] == [ckpt] == seen[-1:]


@pytest.mark.parametrize("prepared", ["train", "resume", "resume alone", "resume before"])
def test_training_that_the_callback_prepared_starts_as_it_is_called(tmp_path, prepared):
    ckpt, job = checkpoints(tmp_path), Job()
    point = ckpt.resume(job.model, job.data, 1) if prepared == "resume before" else None
    with ckpt.attach():
        if prepared == "train":
            ckpt.train(job.model, 1, job.data, callbacks=[job.trace])
        else:
            point = point or ckpt.resume(job.model, job.data, 1)
            # A framework's own call has no checkpoint callback, and would go unsaved.
            own = [ckpt] if prepared == "resume" else []
            job.model.train(1, job.data, callbacks=[job.trace, *own], initial_epoch=point.epoch)
    assert job.trace.steps == first_epoch()
    assert len(ck.CheckpointManager(tmp_path).checkpoints()) == 1


def test_wrapped_model_is_attached_if_its_arguments_are_known(tmp_path, monkeypatch):
    own, calls = Model.train, []

    @functools.wraps(own)
    def logged(*args, **kwargs):
        calls.append(args[0])
        return own(*args, **kwargs)

    monkeypatch.setattr(Model, "train", logged)
    job = Job()
    with checkpoints(tmp_path).attach():
        assert Framework(job).run(1) == first_epoch()
    assert calls == [job.model]

    def hidden(self, *args, **kwargs):
        return own(self, *args, **kwargs)

    monkeypatch.setattr(Model, "train", hidden)
    with pytest.raises(ck.ResumeError, match=r"replaced by a function that does not name the arguments"):
        checkpoints(tmp_path).attach()
    monkeypatch.undo()


@pytest.mark.parametrize("first", ["framework", "callback"])
def test_second_training_is_refused_whoever_started_the_first(tmp_path, first):
    """The other model would get the weights of the first, and a training in pieces would end after one, as complete."""
    ckpt, job = checkpoints(tmp_path), Job()
    with ckpt.attach():
        if first == "framework":
            Framework(job).run(1)
        else:
            ckpt.train(job.model, 1, job.data)
        with pytest.raises(ck.ResumeError, match=rf"called a second time, but {tmp_path} holds the training"):
            Framework(Job()).run(1)


def test_framework_that_resumes_by_itself_is_refused(tmp_path):
    with checkpoints(tmp_path).attach(), pytest.raises(ck.ResumeError, match="begins at epoch 2 by itself"):
        Framework(Job(), initial_epoch=2).run()
    assert list(tmp_path.iterdir()) == []


def test_training_within_the_training_is_refused(tmp_path):
    class Nested(Callback):
        def on_train_epoch_end(self, run_context):
            other.model.train(1, other.data)

    other = Job()
    with checkpoints(tmp_path).attach(), pytest.raises(ck.ResumeError, match="is called within the first call"):
        Framework(Job()).run(2, Nested())


def test_second_callback_is_refused(tmp_path, monkeypatch):
    with checkpoints(tmp_path / "one").attach():
        with monkeypatch.context() as framework:
            framework.setattr(Model, "train", Model.train.__wrapped__)  # also if others have replaced this meanwhile
            with pytest.raises(ck.ResumeError, match=r"a callback for .*one is attached to this Model already"):
                checkpoints(tmp_path / "two").attach()
        with pytest.raises(ck.ResumeError, match="two CheckpointCallbacks"):
            checkpoints(tmp_path / "two").train(Job().model, 1, Job().data)
        Framework(Job()).run(1)


def test_with_that_no_training_reached_says_so(tmp_path):
    with (
        pytest.raises(ck.ResumeError, match=r"nothing in this process called Model.train or Model.fit while"),
        checkpoints(tmp_path).attach(),
    ):
        pass
    with pytest.raises(KeyError), checkpoints(tmp_path).attach():  # the script's own error comes first
        raise KeyError


@pytest.mark.parametrize("process", ["unused", "trains", "worker"])
def test_process_that_no_training_reached_says_so_at_its_end(tmp_path, caplog, monkeypatch, process):
    """But for one of multiprocessing, which may run the lines of the script that attach, and none that train."""
    if process == "worker":
        monkeypatch.setattr(multiprocessing, "parent_process", lambda: "the training")
    attached = checkpoints(tmp_path).attach()
    if process == "trains":
        Framework(Job()).run(1)
    attached._last_call()
    says_so = "nothing in this process called Model.train or Model.fit while" in caplog.text
    assert says_so == (process == "unused")
    assert attached._last_call in AT_EXIT._callbacks
    attached.detach()
    assert attached._last_call not in AT_EXIT._callbacks
