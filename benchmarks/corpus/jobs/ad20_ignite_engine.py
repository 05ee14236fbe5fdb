# truth: differs
# class: attribute

import os
import collections, enum, types
import mindspore as ms, numpy as np, mindspore.dataset as ds
from mindspore import nn, ops, Tensor, Parameter
import ckptkit as ck

ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(3)
rng0 = np.random.default_rng(11)
X = rng0.normal(size=(80, 6)).astype(np.float32)
Y = (X[:, :1] * 0.7 - X[:, 1:2] ** 2 + 0.1 * rng0.normal(size=(80, 1))).astype(np.float32)
loader = [(Tensor(X[i : i + 8]), Tensor(Y[i : i + 8])) for i in range(0, 80, 8)]
net = nn.SequentialCell(nn.Dense(6, 12), nn.Tanh(), nn.Dense(12, 1))
loss_fn = nn.MSELoss()
opt = nn.Momentum(net.trainable_params(), 0.03, 0.9)


def forward(x, y):
    return loss_fn(net(x), y)


grad_fn = ms.jit(ms.value_and_grad(forward, None, opt.parameters))


class Events(enum.Enum):
    STARTED = "started"
    ITERATION_COMPLETED = "iteration_completed"


class Engine:
    def __init__(self, process):
        self.process = process
        self.handlers = collections.defaultdict(list)
        self.state = types.SimpleNamespace(iteration=0, output=None, scale=1.0)

    def on(self, event, every=1):
        def register(handler):
            self.handlers[event].append((every, handler))
            return handler

        return register

    def fire(self, event):
        for every, handler in self.handlers[event]:
            if self.state.iteration % every == 0:
                handler(self)

    def run(self, data):
        self.fire(Events.STARTED)
        for batch in data:
            self.state.iteration += 1
            self.state.output = self.process(self, batch)
            self.fire(Events.ITERATION_COMPLETED)


def update(engine, batch):
    loss, grads = grad_fn(*batch)
    opt(tuple(g * engine.state.scale for g in grads))
    return float(loss)


trainer = Engine(update)


@trainer.on(Events.ITERATION_COMPLETED, every=4)
def decay(engine):
    engine.state.scale *= 0.8


batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, opt], batches)

    @trainer.on(Events.ITERATION_COMPLETED)
    def checkpoint(engine):
        manager.step(state)

    manager.restore(state)
    trainer.run(batches)
    manager.save_final(state)
os._exit(0)
