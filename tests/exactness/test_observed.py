"""Trainings whose state lies in plain Python resume exactly after a SIGKILL.

Each job is a script of its own: killed after micro-step 17, it goes on in a new process from its save after 15. What
its objects and variables are at the end it says through ckptkit's log, which the lives of the corpus record.
"""

import pytest

from benchmarks.corpus.__main__ import HERE
from benchmarks.corpus.job import Job
from benchmarks.corpus.lives import Lives

HEAD = """
import collections, dataclasses, logging, os, random
import mindspore as ms, numpy as np, mindspore.dataset as ds
from mindspore import Tensor, nn, ops
from mindspore.train import Callback, LossMonitor, Model, TimeMonitor
import ckptkit as ck
ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(1)
draw = np.random.default_rng(5)
X, Y = draw.normal(size=(64, 8)).astype(np.float32), draw.normal(size=(64, 1)).astype(np.float32)
rows = [(Tensor(X[i * 8 : i * 8 + 8]), Tensor(Y[i * 8 : i * 8 + 8])) for i in range(8)]
pipeline = lambda: ds.NumpySlicesDataset((X, Y), ["x", "y"], shuffle=True).batch(8)
net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
loss_fn = nn.MSELoss()
optimizer = nn.Momentum(net.trainable_params(), 0.01, 0.9)
grad_fn = ms.value_and_grad(lambda x, y, w: loss_fn(net(x), y) * w, None, optimizer.parameters)
final = lambda *values: logging.getLogger("ckptkit").info("final %s", values)
def train_step(x, y, w=1.0):
    loss, grads = grad_fn(x, y, Tensor(w, ms.float32))
    optimizer(grads)
    return float(loss)
"""

OWN_LOOP = """
from tqdm import tqdm
best = {"loss": 9.0, "at": None}
@dataclasses.dataclass
class Seen:
    loss: float
    weights: list
class Moments:
    def __init__(self):
        self.count, self.mean = 0, np.zeros(2)
class Agent:
    def __init__(self):
        self.moments, self.recent = Moments(), collections.deque(maxlen=4)
    def see(self, loss):
        self.moments.count += 1
        self.moments.mean[0] += (loss - self.moments.mean[0]) / self.moments.count
        self.recent.append(Seen(loss, [loss, self.moments.count]))
        return self.moments.mean[0] + sum(seen.loss * seen.weights[1] for seen in self.recent)
def make_scale():
    scale, calls = 1.0, []
    def next_scale(value):
        nonlocal scale
        scale = 0.9 * scale + 0.1 * value
        calls.append(value)
        return scale / len(calls)
    return next_scale
def train():
    ema, patience, agent, next_scale, history = None, 3, Agent(), make_scale(), collections.defaultdict(list)
    noise, coin, bar = np.random.default_rng(11), random.Random(4), tqdm(total=24)
    batches = ck.data.resumable(rows, epochs=3)
    with ck.CheckpointManager(ROOT, **SAVE) as manager:
        state = ck.StateManager([net, optimizer], batches)
        point = manager.restore(state)
        for step, (x, y) in enumerate(batches, point.batches_delivered):
            w = 1.0 if ema is None else ema + noise.normal() * 0.1 + coin.random()
            loss = train_step(x, y, 1.1 + np.sin(w + best["loss"] + patience))
            ema = loss if ema is None else 0.9 * ema + 0.1 * next_scale(agent.see(loss))
            patience = 3 if loss < best["loss"] else patience - 1
            if loss < best["loss"]:
                best.update(loss=loss, at=agent.moments.count)
            history["even" if step % 2 else "odd"].append(loss)
            bar.set_postfix(loss=f"{loss:.3f}")
            bar.update(1)
            manager.step(state)
        manager.save_final(state)
    moments = agent.moments
    final(best, ema, patience, moments.count, moments.mean.tolist(), agent.recent, noise.normal(), coin.random())
    final(dict(history))
train()
os._exit(0)
"""

MODEL = """
class Rate(Callback):
    def __init__(self, factor):
        super().__init__()
        self.factor, self.rate, self.history, self.meter = factor, 0.01, [], {"sum": 0.0, "count": 0}
    def on_train_step_end(self, run_context):
        loss = float(run_context.original_args().net_outputs)
        self.meter["sum"] += loss
        self.meter["count"] += 1
        self.history.append(loss)
        self.rate = 0.5 * self.rate + self.factor * min(1.0, loss) / len(self.history)
        ops.assign(optimizer.learning_rate, Tensor(self.rate, ms.float32))
    def on_train_epoch_end(self, run_context):
        self.meter = {"sum": 0.0, "count": 0}
callbacks = [Rate(0.01), Rate(0.02), LossMonitor(4), TimeMonitor()]
model = Model(net, loss_fn, optimizer)
ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, pipeline(), callbacks=callbacks)
final([(one.rate, one.history, one.meter) for one in callbacks[:2]])
os._exit(0)
"""


@pytest.fixture(scope="module")
def lives():
    opened = Lives(HERE, is_killed=True)
    yield opened
    opened.close()


def run(lives, name, body):
    return lives.result_of(Job(name, "differs", "variable", HEAD + body))


def messages(life, level):
    return [line["message"] for line in life.log if line["level"] == level]


def finals(result, name):
    return [message for message in messages(result.lives[name], "INFO") if message.startswith("final")]


@pytest.mark.parametrize(
    ("body", "paths"),
    [
        (OWN_LOOP, ["train(): ema", "patience", "moments", "recent", "next_scale", "noise", "coin", "best"]),
        (MODEL, ["Rate().", "Rate#2()."]),
    ],
    ids=["own_loop", "model"],
)
def test_state_in_plain_python_goes_on_exactly(lives, request, body, paths):
    """And histories are whole after a resume."""
    result = run(lives, request.node.callspec.id, body)
    assert (result.outcome, result.about) == ("exact", ""), result.lives
    assert finals(result, "resumed") == finals(result, "whole") != []
    assert "nan" not in "".join(finals(result, "whole"))
    told = " ".join(message for message in messages(result.lives["whole"], "INFO") if message.startswith("also stored"))
    assert any(path in told for path in paths)
    assert result.names == []


def test_without_it_they_differ(lives):
    body = OWN_LOOP.replace("optimizer], batches)", "optimizer], batches, training=ck.Training(ignore=['*']))")
    result = run(lives, "ignored", body)
    assert (result.category, finals(result, "resumed") == finals(result, "whole")) == ("silent", False)
