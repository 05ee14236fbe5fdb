"""`ck.loop`: exact after a SIGKILL, one step after each body, and nothing claimed before."""

from __future__ import annotations

import itertools
import logging
import signal
from pathlib import Path

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
import pytest
from mindspore import nn
from support.process import python, run_python
from support.process_ranks import environment, launcher
from support.training import begin_process, tensors

import ckptkit as ck
from ckptkit.errors import Preempted, ResumeError
from ckptkit.format.events import Ended
from ckptkit.run.event_log import read_events
from ckptkit.run.index import Documents
from ckptkit.storage import LocalStorage

LEFT = "the loop was left in batch"

# Validation at epoch ends, an average of the weights, early stopping: all in variables of a function.
PROGRAM = """
import os, signal, sys
import mindspore as ms, mindspore.dataset as ds, numpy as np
from mindspore import nn
import ckptkit as ck

root, kill, K = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

def main():
    ms.set_seed(1)
    x = np.random.default_rng(0).random((24, 4), np.float32)
    dataset = ds.NumpySlicesDataset({"x": x, "y": x.sum(1, keepdims=True)}).batch(3)
    network, loss = nn.Dense(4, 1), nn.MSELoss()
    optimizer = nn.Adam(network.trainable_params(), 0.1)
    cell = nn.WithLossCell(network, loss)
    if K:
        cell = ck.AccumulationTrainCell(cell, optimizer, K).set_train()
        train = cell
    else:
        gradients = ms.value_and_grad(lambda x, y: loss(network(x), y), None, optimizer.parameters)
        train = [network, None, optimizer]
    average = {p.name: p.asnumpy().copy() for p in network.get_parameters()}
    history, best, patience = [], float("inf"), 0
    run = ck.loop(root, dataset, epochs=4, train=train, as_dict=True, save=ck.SaveEvery(micro_steps=1),
                  saving=ck.Saving(when_busy="wait"), keep=ck.KeepBest(1, "score", "min"))
    for data in run:
        x, y = data["x"], data["y"] * float(1 + np.random.rand())
        if K:
            value = cell(x, y)
        else:
            value, grads = gradients(x, y)
            optimizer(grads)
        history.append(float(value))
        for p in network.get_parameters():
            average[p.name] = 0.9 * average[p.name] + 0.1 * p.asnumpy()
        run.log(loss=value)
        if run.epoch_ends:
            run.fence()
            kept = {p.name: p.asnumpy().copy() for p in network.get_parameters()}
            for p in network.get_parameters():
                ms.ops.assign(p, ms.Tensor(average[p.name]))
            score = float(loss(network(x), y)) + sum(history)
            for p in network.get_parameters():
                ms.ops.assign(p, ms.Tensor(kept[p.name]))
            run.log(score=score)
            best, patience = (score, 0) if score < best else (best, patience + 1)
            if patience == 2:
                run.stop("no better score in two epochs")
        words = [part.tobytes().hex() for part in (value.asnumpy(), x.asnumpy(), *average.values())]
        print(run.step, run.epoch, run.batch, *words, repr(history[-3:]), len(history), best, patience, flush=True)
        if run.step == kill:
            os.kill(os.getpid(), signal.SIGKILL)
        if run.step % 2:
            continue

main()
"""


def lines_of(tmp_path, root, kill, k):
    script = tmp_path / "script.py"
    script.write_text(PROGRAM)
    work = tmp_path / root
    work.mkdir(exist_ok=True)
    ended = run_python(
        str(script), str(tmp_path / f"{root}.ck"), str(kill), str(k), folder=work, environment={}, timeout=120
    )
    ended.expect(0 if kill < 0 else -signal.SIGKILL)
    return dict(line.split(" ", 1) for line in ended.stdout.splitlines()), ended.stderr


@pytest.mark.parametrize("k", [0, pytest.param(4, marks=pytest.mark.extended)])
def test_killed_loop_resumes_exactly(tmp_path, k):
    whole, _ = lines_of(tmp_path, "whole", -1, k)
    assert [*map(int, whole)] == [*range(24)]  # stopped after three of four epochs
    lives = [lines_of(tmp_path, "run", kill, k)[0] for kill in (9, 16, -1)]
    for before, life in itertools.pairwise(lives):
        # A save under way dies with the process; the batch that was being trained was in none.
        assert 0 < min(map(int, life)) <= max(map(int, before))
    for life in lives:
        assert life == {number: whole[number] for number in life}
    assert max(map(int, lives[-1])) == 23
    nothing, said = lines_of(tmp_path, "run", -1, k)
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

    ``until`` is called with the loop in each body, and says whether to leave it. Checkpoints hold the places, too.
    """
    training, places = Training(), []
    run = training.loop(root, **options)
    for x, y in run:
        places.append((run.epoch, run.batch, run.step))
        training.step(x, y)
        if until is not None and until(run):
            break
    run.close()
    return tensors(training.network), places, run.point.batches_delivered


def saved(root):
    """Batches of the checkpoints, oldest first."""
    return [info.progress.batches_delivered for info in ck.CheckpointManager(root).checkpoints()]


PLACES = [(step // 4, step % 4, step) for step in range(8)]


def test_places_continue_in_the_middle_of_an_epoch(tmp_path):
    whole = trained(tmp_path / "whole")
    assert whole[1:] == (PLACES, 0)
    _, before, _ = trained(tmp_path / "cut", lambda run: run.step == 6)
    state, after, begun = trained(tmp_path / "cut")
    assert before == PLACES[:7]
    assert (after, begun) == (PLACES, 6)  # the body that was left counts as not trained
    assert state == whole[0]


def test_complete_training_is_started_again_without_a_batch(tmp_path, caplog, monkeypatch):
    caplog.set_level(logging.INFO)
    whole, *_ = trained(tmp_path, every=3)
    assert saved(tmp_path)[-2:] == [6, 8]
    assert trained(tmp_path) == (whole, PLACES, 8)  # what the script keeps itself is put back, too
    assert "training is complete (8 batches are 2 epochs); nothing to do" in caplog.text
    assert "To train on, give more than 2 epochs" in caplog.text
    with pytest.raises(ResumeError, match="Give all epochs to one call"):
        trained(tmp_path, epochs=3)  # as in `for epoch in range(3): for x in ck.loop(..., epoch + 1)`
    monkeypatch.setattr("ckptkit.mindspore.loop._ENDED", {})  # a later process
    more = trained(tmp_path, epochs=3)
    assert more == (*trained(tmp_path / "whole", epochs=3)[:2], 8)


def test_stop_is_stored_with_its_reason(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    state, places, _ = trained(tmp_path, lambda run: run.step == 2 and run.stop("it is good enough"), every=100)
    assert places == PLACES[:3]  # the body that calls it is the last one
    assert "training ended after 3 batches (it is good enough)" in caplog.text
    assert saved(tmp_path) == [3]
    assert trained(tmp_path, epochs=9) == (state, PLACES[:3], 3)
    assert "training is complete (it is good enough); nothing to do" in caplog.text


def test_save_of_the_body_is_taken_when_it_ends(tmp_path):
    trained(tmp_path, lambda run: run.step == 4 and run.save(), every=100)
    assert saved(tmp_path) == [5, 8]


def test_ranked_metric_is_saved_with_its_epoch(tmp_path):
    def score(run):
        run.log(loss=run.step)
        if run.epoch_ends:
            run.log(accuracy=10.0 - run.epoch)

    trained(tmp_path, score, epochs=3, every=100, keep=ck.KeepBest(1, "accuracy", "max"))
    found = {info.progress.batches_delivered: info.metrics for info in ck.CheckpointManager(tmp_path).checkpoints()}
    assert found[4] == {"loss": 3.0, "accuracy": 10.0}
    assert found[12] == {"loss": 11.0, "accuracy": 8.0}


def test_break_makes_no_final_save_and_says_so(tmp_path, caplog):
    before = signal.getsignal(signal.SIGTERM)
    training = Training()
    run = training.loop(tmp_path, every=4)
    for x, y in run:
        assert signal.getsignal(signal.SIGTERM) is not before
        training.step(x, y)
        if run.step == 5:
            break
    assert signal.getsignal(signal.SIGTERM) is before
    run.close()
    assert saved(tmp_path) == [4]
    assert f"{LEFT} 6" in caplog.text
    assert "run.stop(reason)" in caplog.text


def test_start_that_finds_no_batch_left_is_told_as_complete(tmp_path):
    class Stream:
        def __iter__(self):
            yield from [(ms.Tensor(np.ones((2, 4), np.float32)), ms.Tensor(np.ones((2, 1), np.float32)))] * 3

    found = [trained(tmp_path, data=Stream())[1] for _ in range(2)]
    assert list(map(len, found)) == [6, 0]
    storage = LocalStorage(tmp_path)
    files = read_events(storage, Documents(storage))
    events = [event for segment in files.segments for event in segment.events]
    assert [event.how for event in events if isinstance(event, Ended)] == ["finished", "complete"]


def test_end_of_an_epoch_of_unknown_length_is_refused(tmp_path):
    class Stream:
        def __iter__(self):
            yield from [(ms.Tensor(np.ones((2, 4), np.float32)), ms.Tensor(np.ones((2, 1), np.float32)))] * 3

    run = Training().loop(tmp_path, data=Stream())
    for _ in run:
        with pytest.raises(ResumeError, match="__len__"):
            assert run.epoch_ends


def test_preempted_loop_saves_and_raises(tmp_path):
    asked = []
    preemption = ck.Preemption(when=lambda: bool(asked))
    with pytest.raises(Preempted):
        trained(tmp_path, lambda run: run.step == 2 and asked.append(1), every=100, preemption=preemption)
    (batches,) = saved(tmp_path)
    assert trained(tmp_path) == (*trained(tmp_path / "whole")[:2], batches)


def test_preempted_loop_returns_if_asked_to(tmp_path):
    training, asked = Training(), []
    options = {"every": 100, "preemption": ck.Preemption(then="return", when=lambda: bool(asked))}
    run = training.loop(tmp_path, **options)
    for x, y in run:
        training.step(x, y)
        asked.append(1)
    assert run.preempted
    assert saved(tmp_path) == [run.step + 1]


def test_error_in_the_body_passes_unchanged(tmp_path):
    error, runs = ValueError("of the body"), []

    def fail(run):
        runs[:] = [run]
        if run.step == 5:
            raise error

    with pytest.raises(ValueError, match="of the body") as raised:
        trained(tmp_path, fail, every=4)
    assert raised.value is error
    runs[0].close()
    assert saved(tmp_path) == [4]


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


def test_count_around_the_loop_is_named(tmp_path, caplog):
    training = Training()
    for number, (x, y) in enumerate(training.loop(tmp_path)):
        training.step(x, y + number)
    assert "enumerate around the batches" in caplog.text


def test_dicts_have_the_columns_of_create_dict_iterator(tmp_path):
    rows = np.arange(12, dtype=np.float32).reshape(6, 2)
    dataset = ds.NumpySlicesDataset({"b": rows, "a": rows[:, 0]}, shuffle=False).batch(2)
    expected = [*dataset.create_dict_iterator(num_epochs=1, output_numpy=True)] * 2
    batches = [*ck.loop(tmp_path, dataset, 2, train=nn.Dense(2, 1), as_dict=True)]
    assert [[*batch] for batch in batches] == [[*batch] for batch in expected]
    for batch, columns in zip(batches, expected, strict=True):
        assert all((batch[name].asnumpy() == column).all() for name, column in columns.items())


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
for x in run:
    network(x)
    if run.step == 5:
        {leaves}
print("after")
{after}
"""


@pytest.mark.parametrize(
    ("leaves", "after", "ends"),
    [
        ("break", "", (0, ["after", "ENDED"], '"how":"closed"')),
        ("raise KeyError(run.step)", "", (1, ["TRAINING"], '"how":"failed"')),
        ("break", "raise KeyError(run.step)", (1, ["after", "EVALUATING"], '"how":"failed"')),
    ],
)
def test_program_says_at_its_end_how_the_loop_was_left(tmp_path: Path, leaves, after, ends):
    code, phases, how = ends
    script = tmp_path / "script.py"
    script.write_text(END.format(leaves=leaves, after=after))
    ended = run_python(str(script), str(tmp_path / "run"), folder=tmp_path, environment={}).expect(code)
    assert ended.stdout.splitlines() == phases
    assert ("KeyError: 5" in ended.stderr) == bool(code)
    assert (f"{LEFT} 6" in ended.stderr) == (code == 0)
    assert "Exception ignored" not in ended.stderr  # the variable holds the loop until modules are gone
    assert how in "".join(path.read_text() for path in (tmp_path / "run/events").iterdir()).replace(" ", "")
    assert saved(tmp_path / "run") == [4]


RANKS = """
import os, sys
import mindspore as ms, numpy as np
from mindspore import nn
from support.process_ranks import world
import ckptkit as ck
from ckptkit.mindspore.state import manager

WORLD = world()
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
        done = python(*launcher(2, str(script), str(tmp_path / "run"))[1:], environment=environment())
        said.append(sorted(done.stdout.splitlines()))
    assert said == [["rank 0: 0, 3", "rank 1: 0, 3"], ["rank 0: 4, 4", "rank 1: 4, 4"]]
    assert "training is complete (it is enough)" in done.stderr
    assert "training is complete (another rank stopped)" in done.stderr
