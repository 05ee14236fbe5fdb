# truth: exact
# class: file

import os
import json, time
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


class Run:
    def __init__(self, project, config):
        self.config, self.step = config, 0
        self.summary, self.history = {}, []
        self.file = open(f"{project}.jsonl", "a")

    def log(self, metrics):
        self.step += 1
        row = {"_step": self.step, "_time": time.time(), **metrics}
        self.history.append(row)
        self.summary.update(metrics)
        self.summary["best"] = min(self.summary.get("best", 1e9), metrics["loss"])
        self.file.write(json.dumps(row) + "\n")

    def finish(self):
        self.file.close()
        print("summary", self.summary)


run = Run("toy", {"lr": 0.03})
batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x, y in batches:
        loss, grads = grad_fn(x, y)
        opt(grads)
        run.log({"loss": float(loss), "epoch": batches.epoch, "lr": float(opt.learning_rate)})
        manager.step(state)
    manager.save_final(state)
run.finish()
os._exit(0)
