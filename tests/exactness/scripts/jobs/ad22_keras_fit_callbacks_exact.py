# exact, quiet
import os
import mindspore as ms, numpy as np, mindspore.dataset as ds
from mindspore import nn, ops, Tensor, Parameter
import ckptkit as ck

ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3)
rng0 = np.random.default_rng(11)
X = rng0.normal(size=(80, 6)).astype(np.float32)
Y = (X[:, :1] * 0.7 - X[:, 1:2] ** 2 + 0.1 * rng0.normal(size=(80, 1))).astype(np.float32)
loader = [(Tensor(X[i : i + 8]), Tensor(Y[i : i + 8])) for i in range(0, 80, 8)]
net = nn.SequentialCell(nn.Dense(6, 12), nn.Tanh(), nn.Dense(12, 1))
loss_fn = nn.MSELoss()
opt = nn.Momentum(net.trainable_params(), 0.03, 0.9)
grad_fn = ms.value_and_grad(lambda x, y: loss_fn(net(x), y), None, opt.parameters)


class Callback:
    def on_batch_end(self, step, logs): ...
    def on_epoch_end(self, epoch, logs): ...


class History(Callback):
    def __init__(self):
        self.history = {}

    def on_epoch_end(self, epoch, logs):
        for k, v in logs.items():
            self.history.setdefault(k, []).append(v)


class ProgBar(Callback):
    def on_batch_end(self, step, logs):
        if step % 5 == 0:
            print(f"\r{step:4d} " + " ".join(f"{k}={v:.4f}" for k, v in logs.items()))


class StepDecay(Callback):
    def on_batch_end(self, step, logs):
        ops.assign(opt.learning_rate, Tensor(0.03 * 0.5 ** (step // 8), ms.float32))


def fit(data, epochs, callbacks):
    batches = ck.data.resumable(data, epochs=epochs)
    with ck.CheckpointManager(ROOT, **SAVE) as manager:
        state = ck.StateManager([net, opt], batches)
        point = manager.restore(state)
        for step, (x, y) in enumerate(batches, point.batches_delivered):
            loss, grads = grad_fn(x, y)
            opt(grads)
            logs = {"loss": float(loss)}
            for c in callbacks:
                c.on_batch_end(step, logs)
            manager.step(state)
            if (step + 1) % len(data) == 0:
                for c in callbacks:
                    c.on_epoch_end(batches.epoch, logs)
        manager.save_final(state)


history = History()
fit(loader, 3, [history, ProgBar(), StepDecay()])
print(history.history)
os._exit(0)
