"""Real signals during Model.train and Model.fit."""

import os
import signal

import pytest
from mindspore.train import Callback
from support.process import run_python
from support.training import SIZE, Job, checkpoints, names, reference, tensors

import ckptkit as ck
from ckptkit.manager.preemption import SIGNALS

TERMINATED = 143


class Kill(Callback):
    def __init__(self, *, step=None, evaluation=None, number=signal.SIGTERM):
        self.step, self.evaluation, self.number = step, evaluation, number
        self.ended = False

    def on_train_step_end(self, run_context):
        if run_context.original_args().cur_step_num == self.step:
            os.kill(os.getpid(), self.number)

    def on_eval_step_end(self, run_context):
        if run_context.original_args().cur_epoch_num == self.evaluation:
            self.evaluation = None
            os.kill(os.getpid(), self.number)

    def on_train_end(self, run_context):
        self.ended = True


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """A manager that another test has left open would end this process when its grace is over."""
    monkeypatch.setattr(SIGNALS, "_listeners", [])
    before = signal.getsignal(signal.SIGTERM)
    yield
    assert SIGNALS._listeners == []
    assert signal.getsignal(signal.SIGTERM) in (before, signal.SIG_DFL)


@pytest.mark.parametrize(("mode", "at"), [("pynative", 6), ("graph", 3 * SIZE)])
def test_what_was_preempted_goes_on_bit_for_bit(root, mode, at):
    first, kill = Job(mode=mode), Kill(step=at)
    with pytest.raises(ck.Preempted) as raised:
        first.started(checkpoints(root), 3, kill)
    assert raised.value.code == TERMINATED
    assert max(first.trace.steps) == at
    assert kill.ended == (at == 3 * SIZE)
    assert names(root) == [raised.value.checkpoint] == [f"a000001-c{at // 4:010d}-m{at % 4:04d}"]
    second = Job(mode=mode)
    ckpt = checkpoints(root)
    second.resumed(ckpt, 3)
    assert not ckpt.preempted
    assert {**first.trace.steps, **second.trace.steps} == reference(mode)
    assert first.trace.steps.keys().isdisjoint(second.trace.steps)


class Double(Callback):
    def on_train_end(self, run_context):
        for weight in run_context.original_args().train_network.network.trainable_params():
            weight.set_data(weight * 2)


def test_last_checkpoint_includes_work_of_on_train_end(root):
    """After a signal in the last micro-step, too: the next start finds the run complete, and nobody calls it there."""
    whole, signalled, other = Job(), Job(), root.with_name("other")
    whole.started(checkpoints(root, save=ck.SaveEvery(micro_steps=SIZE)), 1, Double())
    assert names(root) == [f"a000001-c{SIZE // 4:010d}-m{SIZE % 4:04d}"]
    with pytest.raises(ck.Preempted):
        signalled.started(checkpoints(other), 1, Kill(step=SIZE), Double())
    for run in (root, other):
        restarted = Job()
        restarted.resumed(checkpoints(run), 1, Double())
        assert restarted.trace.steps == {}
        assert tensors(restarted.cell) == tensors(whole.cell)


def test_preempt_return_resumes_script_without_further_training(root):
    job, kill = Job(), Kill(step=6, number=signal.SIGUSR1)
    steps = {}
    for preempted in (True, False, False):  # the third start finds the run complete
        ckpt = checkpoints(root, on_preempt="return")
        (job.started if preempted else job.resumed)(ckpt, 1, *[kill] * preempted)
        assert ckpt.preempted == preempted
        steps |= job.trace.steps
        if preempted:
            assert (max(steps), kill.ended, names(root)) == (6, True, ["a000001-c0000000001-m0002"])
        job = Job()
    assert steps == {step: bits for step, bits in reference().items() if step <= SIZE}


def test_signal_in_evaluation_saves_with_its_metrics(root):
    whole = Job(fit=True)
    whole.model.fit(3, whole.data, whole.valid, callbacks=[whole.trace])
    first = Job(fit=True)
    with pytest.raises(ck.Preempted):
        checkpoints(root).fit(first.model, 3, first.data, first.valid, callbacks=[first.trace, Kill(evaluation=2)])
    (last,) = ck.CheckpointManager(root).checkpoints()
    assert (last.name, dict(last.metrics)) == ("a000001-c0000000005-m0002", whole.trace.evaluated[2])
    second = Job(fit=True)
    checkpoints(root).fit(second.model, 3, second.data, second.valid, callbacks=[second.trace])
    assert {**first.trace.steps, **second.trace.steps} == whole.trace.steps
    assert second.trace.evaluated == {3: whole.trace.evaluated[3]}  # those of the first two epochs are not repeated


def test_signals_outside_training_belong_to_the_script(root):
    heard = []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append("before"))
    try:
        job, ckpt = Job(), checkpoints(root)
        ckpt.resume(job.model, job.data, 1)
        os.kill(os.getpid(), signal.SIGTERM)
        job.model.train(1, job.data, callbacks=[ckpt])
        os.kill(os.getpid(), signal.SIGTERM)
        assert heard == ["before", "before"]
    finally:
        signal.signal(signal.SIGTERM, before)


SCRIPT = """
import os, signal, sys, threading
from datetime import timedelta
import numpy as np
from mindspore import nn
from support.training import *

compiles = sys.argv[2] == "while it compiles"

class Deep(Mlp):
    def __init__(self):
        super().__init__()
        self.out = nn.SequentialCell(*[nn.Dense(8, 8) for _ in range(160)], nn.Dense(8, 3))

class Watch(Callback):
    def on_train_step_begin(self, run_context):
        if compiles:
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
    def on_train_step_end(self, run_context):
        print("micro-step ended", file=sys.stderr, flush=True)
        if run_context.original_args().cur_step_num == 6:
            os.kill(os.getpid(), signal.SIGINT)

data = lambda: pipeline().map(lambda x: x * np.float32(1), ["x"], num_parallel_workers=2,
                              python_multiprocessing=not compiles)
network = Deep if compiles else Mlp
job = Job(mode="graph" if compiles else "pynative", data=data, cell=lambda: accumulation_cell(network=network))
ckpt = checkpoints(sys.argv[1], grace=timedelta(seconds=0.5 if compiles else 25), augmentation="stateless")
job.started(ckpt, 3, Watch())
print("exported")
"""


def test_signalled_process_always_exits_with_143(root, tmp_path):
    """With data workers in processes, whose ends are no preemption; then while MindSpore compiles."""

    def live(place, when):
        done = run_python(str(script), str(place), when, folder=tmp_path).expect(TERMINATED)
        assert "exported" not in done.stdout
        return done.stderr

    script, empty = tmp_path / "train.py", root.with_name("empty")
    script.write_text(SCRIPT)
    # Ctrl-C acts like SIGTERM: nothing that Python can see tells the two apart.
    said = live(root, "in a micro-step")
    assert "SIGTERM: saved a000001-c0000000001-m000" in said
    assert "Traceback" not in said
    said = live(empty, "while it compiles")
    assert "micro-step ended" not in said  # it was noticed while the first one was compiled
    assert said.splitlines()[-2:] == [
        "[ckptkit] SIGTERM: saving within 0.5 s and ending",
        "[ckptkit] SIGTERM: the last save, or what follows it such as an upload, did not end within 0.5 s. There is no "
        f"checkpoint at {empty} yet: the same command begins afresh.",
    ]
    assert names(empty) == []
