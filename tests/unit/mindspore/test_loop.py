"""`ck.loop`: exact after a SIGKILL, one step after each body, and nothing claimed before."""

import contextlib
import itertools
import logging
import signal

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
import pytest
from mindspore import nn
from support.process import run_python
from support.training import begin_process, tensors

import ckptkit as ck
from ckptkit.errors import Preempted, ResumeError

# Validation at epoch ends, an average of the weights, early stopping, a closure, generators, objects of own classes: in
# variables of a function, a default argument, attributes of a class and globals.
PROGRAM = """
import collections, dataclasses, os, random, signal, sys
import mindspore as ms, mindspore.dataset as ds, numpy as np
from mindspore import nn
import ckptkit as ck

root, kill = sys.argv[1:]

@dataclasses.dataclass
class Seen:
    loss: float
    weights: list

lowest, table = {"loss": 9.0}, {}

class Agent:
    total = 0.0

    def __init__(self):
        self.count, self.mean, self.recent = 0, np.zeros(2), collections.deque(maxlen=4)

    def see(self, loss, bag=[]):
        self.count += 1
        self.mean[0] += (loss - self.mean[0]) / self.count
        self.recent.append(Seen(loss, [loss, self.count]))
        bag.append(loss)
        Agent.total += loss
        lowest["loss"] = min(lowest["loss"], loss)
        table[f"step{self.count}"] = len(bag)
        return self.mean[0] + sum(seen.loss * seen.weights[1] for seen in self.recent)

def make_scale():
    scale, calls = 1.0, []

    def next_scale(value):
        nonlocal scale
        scale = 0.9 * scale + 0.1 * value
        calls.append(value)
        return scale / len(calls)

    return next_scale

def main():
    ms.set_seed(1)
    x = np.random.default_rng(0).random((24, 4), np.float32)
    dataset = ds.NumpySlicesDataset({"x": x, "y": x.sum(1, keepdims=True)}).batch(3)
    network, loss = nn.Dense(4, 1), nn.MSELoss()
    optimizer = nn.Adam(network.trainable_params(), 0.1)
    gradients = ms.value_and_grad(lambda x, y: loss(network(x), y), None, optimizer.parameters)
    average = {p.name: p.asnumpy().copy() for p in network.get_parameters()}
    history, best, patience = [], float("inf"), 0
    agent, next_scale, by_parity = Agent(), make_scale(), collections.defaultdict(list)
    noise, coin = np.random.default_rng(11), random.Random(4)
    run = ck.loop(root, dataset, epochs=4, train=[network, None, optimizer], as_dict=True,
                  save=ck.SaveEvery(micro_steps=1), saving=ck.Saving(when_busy="wait"),
                  keep=ck.KeepBest(1, "score", "min"))
    for data in run:
        x, y = data["x"], data["y"] * float(1 + np.random.rand())
        value, grads = gradients(x, y)
        optimizer(grads)
        history.append(float(value))
        by_parity[run.step % 2].append(next_scale(agent.see(float(value))))
        own = [dict(by_parity), noise.normal(), coin.random(), Agent.total, lowest, table]
        for p in network.get_parameters():
            average[p.name] = 0.9 * average[p.name] + 0.1 * p.asnumpy()
        run.log(loss=value)
        if run.epoch_ends:
            run.fence()
            score = float(loss(network(x), y)) + sum(history) + sum(float(part.sum()) for part in average.values())
            run.log(score=score)
            best, patience = (score, 0) if score < best else (best, patience + 1)
            if patience == 2:
                run.stop("no better score in two epochs")
        words = [part.tobytes().hex() for part in (value.asnumpy(), x.asnumpy(), *average.values())]
        print(run.step, run.epoch, run.batch, *words, repr(history[-3:]), len(history), best, patience, own, flush=True)
        if str(run.step) == kill:
            os.kill(os.getpid(), signal.SIGKILL)
        if run.step % 2:
            continue

main()
"""


def lines_of(program, root, death):
    """What a program prints until it dies, or to its end if ``death`` is "-"."""
    script = root.with_name("script.py")
    script.write_text(program)
    ended = run_python(str(script), str(root), death, folder=root.parent)
    ended.expect(0 if death == "-" else -signal.SIGKILL)
    return ended.stdout.splitlines(), ended.stderr


def test_killed_loop_resumes_exactly(tmp_path):
    def printed(root, kill="-"):
        lines, said = lines_of(PROGRAM, tmp_path / root, kill)
        return dict(line.split(" ", 1) for line in lines), said

    whole, _ = printed("whole")
    assert [*map(int, whole)] == [*range(24)]  # stopped after three of four epochs
    lives, texts = zip(*(printed("run", kill) for kill in ("9", "16", "-")), strict=True)
    assert "could not be put back" not in "".join(texts)
    for before, life in itertools.pairwise(lives):
        # A save under way dies with the process; the batch that was being trained was in none.
        assert 0 < min(map(int, life)) <= max(map(int, before))
    for life in lives:
        assert life == {number: whole[number] for number in life}
    assert max(map(int, lives[-1])) == 23
    nothing, said = printed("run")
    assert nothing == {}
    assert "training is complete (no better score in two epochs)" in said


class Training:
    """A network whose loop has eight rows in four batches an epoch."""

    def __init__(self):
        begin_process()
        self.network = nn.Dense(4, 1)
        self.optimizer = nn.Momentum(self.network.trainable_params(), 0.1, 0.9)
        loss = nn.MSELoss()
        self.gradients = ms.value_and_grad(lambda x, y: loss(self.network(x), y), None, self.network.trainable_params())

    def loop(self, root, epochs=2, *, every=1, data=None, **options):
        rows = np.arange(32, dtype=np.float32).reshape(8, 4)
        data = data or ds.NumpySlicesDataset({"x": rows, "y": rows[:, :1]}, shuffle=False).batch(2)
        options = {"save": ck.SaveEvery(micro_steps=every), "saving": ck.Saving(when_busy="wait"), **options}
        return ck.loop(root, data, epochs, train=[self.network, self.optimizer], **options)

    def step(self, x, y):
        loss, gradients = self.gradients(x / 64, y / 64)
        self.optimizer(gradients)
        return float(loss)


def trained(root, until=None, **options):
    """The state of a training, the places of all its batches, and where this start began.

    ``until`` is called with the loop in each body. Checkpoints hold the places, too.
    """
    training, places = Training(), []
    run = training.loop(root, **options)
    for x, y in run:
        places.append((run.epoch, run.batch, run.step))
        training.step(x, y)
        if until is not None:
            until(run)
    run.close()
    return tensors(training.network), places, run.point.batches_delivered


def saved(root):
    """Batches of the checkpoints, oldest first."""
    return [info.progress.batches_delivered for info in ck.CheckpointManager(root).checkpoints()]


PLACES = [(step // 4, step % 4, step) for step in range(8)]


def test_places_continue_in_the_middle_of_an_epoch(tmp_path, caplog):
    """The body that was left by an error counts as not trained, even if it asked for a save; the error passes."""
    whole = trained(tmp_path / "whole")
    assert whole[1:] == (PLACES, 0)
    error, runs = ValueError("of the body"), []

    def fail(run):
        runs[:] = [run]
        if run.step in (4, 6):
            run.save()
        if run.step == 6:
            raise error

    with pytest.raises(ValueError, match="of the body") as raised:
        trained(tmp_path / "cut", fail, every=100)
    assert raised.value is error
    runs[0].close()
    assert saved(tmp_path / "cut") == [5]
    assert trained(tmp_path / "cut") == (*whole[:2], 5)


def test_complete_training_is_started_again_without_a_batch(tmp_path, caplog, monkeypatch):
    caplog.set_level(logging.INFO)
    whole, *_ = trained(tmp_path / "run", every=3)
    assert saved(tmp_path / "run")[-2:] == [6, 8]
    assert trained(tmp_path / "run") == (whole, PLACES, 8)  # what the script keeps itself is put back, too
    for said in (
        "training is complete (8 batches are 2 epochs); nothing to do",
        "To train on, give more than 2 epochs",
    ):
        assert said in caplog.text
    with pytest.raises(ResumeError, match="Give all epochs to one call"):
        trained(tmp_path / "run", epochs=3)  # as in `for epoch in range(3): for x in ck.loop(..., epoch + 1)`
    monkeypatch.setattr("ckptkit.mindspore.loop._ENDED", {})  # a later process
    assert trained(tmp_path / "run", epochs=3) == (*trained(tmp_path / "whole", epochs=3)[:2], 8)


def test_stop_is_stored_with_its_reason(tmp_path, caplog):
    """And metrics with the epoch that logged them."""
    caplog.set_level(logging.INFO)

    def score(run):
        run.log(loss=run.step)
        if run.epoch_ends:
            run.log(accuracy=10.0 - run.epoch)
        if run.step == 9:
            run.stop("it is good enough")

    keep = ck.KeepBest(1, "accuracy", "max")
    state, places, _ = trained(tmp_path, score, epochs=9, every=100, keep=keep)
    assert places[-1] == (2, 1, 9)  # the body that calls it is the last one
    assert "training ended after 10 batches (it is good enough)" in caplog.text
    found = {info.progress.batches_delivered: info.metrics for info in ck.CheckpointManager(tmp_path).checkpoints()}
    assert found[4] == {"loss": 3.0, "accuracy": 10.0}
    assert max(found) == 10
    assert trained(tmp_path, epochs=9) == (state, places, 10)
    assert "training is complete (it is good enough); nothing to do" in caplog.text


@pytest.mark.parametrize("then", ["exit", "return"])
def test_preempted_loop_saves_and_leaves(tmp_path, then):
    asked, before = [], signal.getsignal(signal.SIGTERM)

    def ask(run):
        assert signal.getsignal(signal.SIGTERM) is not before
        if run.step == 2:
            asked.append(1)

    preemption = ck.Preemption(then=then, when=lambda: bool(asked))
    with pytest.raises(Preempted) if then == "exit" else contextlib.nullcontext():
        trained(tmp_path / "run", ask, every=100, preemption=preemption)
    assert signal.getsignal(signal.SIGTERM) is before
    (batches,) = saved(tmp_path / "run")
    assert trained(tmp_path / "run") == (*trained(tmp_path / "whole")[:2], batches)


def test_strict_loop_refuses_at_the_first_save_what_cannot_be_stored(tmp_path):
    def noises():
        while True:
            yield float(np.random.normal())

    def train():
        training, noise = Training(), noises()
        for x, y in training.loop(tmp_path, strict=True):
            steps.append(training.step(x, y + next(noise)))

    steps = []
    with pytest.raises(ResumeError, match=r"train\(\): noise"):
        train()
    assert len(steps) == 1


END = """
import atexit, sys
from ckptkit.manager.heartbeat import HEARTBEAT
atexit.register(lambda: print(HEARTBEAT._record.last_phase.name))
import mindspore as ms
from mindspore import nn
import ckptkit as ck

ms.set_seed(1)
network = nn.Dense(1, 1)
run = ck.loop(sys.argv[1], [ms.Tensor([[1.0]])] * 8, 1, train=network, save=ck.SaveEvery(micro_steps=4),
              saving=ck.Saving(when_busy="wait"))
for number, x in enumerate(run):
    network(x)
    if run.step == 5:
        {leaves}
print("after")
{after}
"""


@pytest.mark.parametrize(
    ("leaves", "after", "code", "phases"),
    [
        ("break", "", 0, ["after", "ENDED"]),
        ("raise KeyError(run.step)", "", 1, ["TRAINING"]),
        ("break", "raise KeyError(run.step)", 1, ["after", "EVALUATING"]),
    ],
)
def test_program_says_at_its_end_how_the_loop_was_left(tmp_path, leaves, after, code, phases):
    script = tmp_path / "script.py"
    script.write_text(END.format(leaves=leaves, after=after))
    ended = run_python(str(script), str(tmp_path / "run"), folder=tmp_path, environment={}).expect(code)
    assert ended.stdout.splitlines() == phases
    assert ("KeyError: 5" in ended.stderr) == bool(code)
    assert ("the loop was left in batch 6" in ended.stderr) == (code == 0)
    assert "enumerate around the batches" in ended.stderr
    assert "Exception ignored" not in ended.stderr  # the variable holds the loop until modules are gone
    events = "".join(path.read_text() for path in (tmp_path / "run/events").iterdir()).replace(" ", "")
    assert f'"how":"{"failed" if code else "closed"}"' in events
    assert saved(tmp_path / "run") == [4]


RANKS = """
import os, sys
import mindspore as ms, numpy as np
from mindspore import nn
from support.process_ranks import fork_pair
import ckptkit as ck
from ckptkit.mindspore.state import manager

WORLD = fork_pair()
manager.world = lambda: WORLD
ms.set_seed(1)
network = nn.Dense(1, 1)
run = ck.loop(sys.argv[1], [ms.Tensor(np.ones((1, 1), np.float32))] * 4, 3, train=network)
for x in run:
    network(x)
    if (WORLD.rank, run.step) == (1, 1):
        run.stop("it is enough")
os.write(1, f"rank {WORLD.rank}: {run.point.batches_delivered}, {run.step}\\n".encode())  # one line in one call
"""


def test_all_ranks_stop_at_the_end_of_the_epoch(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(RANKS)
    said = []
    for _ in range(2):
        done = run_python(str(script), str(tmp_path / "run"), folder=tmp_path).expect(0)
        said.append(sorted(done.stdout.splitlines()))
    assert said == [["rank 0: 0, 3", "rank 1: 0, 3"], ["rank 0: 4, 4", "rank 1: 4, 4"]]
    assert "training is complete (it is enough)" in done.stderr
    assert "training is complete (another rank stopped)" in done.stderr
