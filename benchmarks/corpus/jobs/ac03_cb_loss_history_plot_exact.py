# truth: exact, may be named
# class: callback

import os
import json, pathlib, time
import mindspore as ms, numpy as np, mindspore.dataset as ds
from mindspore import nn, ops, Tensor, Parameter
import ckptkit as ck

ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(3)
rng0 = np.random.default_rng(11)
X = rng0.normal(size=(80, 6)).astype(np.float32)
Y = (X[:, :1] * 0.7 - X[:, 1:2] ** 2).astype(np.float32)
train_data = ds.NumpySlicesDataset((X, Y), ["x", "y"], shuffle=True).batch(8)
net = nn.SequentialCell(nn.Dense(6, 12), nn.Tanh(), nn.Dense(12, 1))
opt = nn.Momentum(net.trainable_params(), 0.05, 0.9)
model = ms.Model(net, nn.MSELoss(), opt)


class Report(ms.Callback):
    def __init__(self, path):
        super().__init__()
        self.path, self.losses, self.started = path, [], time.time()

    def on_train_step_end(self, run_context):
        self.losses.append(float(run_context.original_args().net_outputs.asnumpy()))

    def on_train_epoch_end(self, run_context):
        params = run_context.original_args()
        text = json.dumps({"epoch": params.cur_epoch_num, "loss": self.losses, "seconds": time.time() - self.started})
        pathlib.Path(self.path).write_text(text)
        print(f"epoch {params.cur_epoch_num}: {np.mean(self.losses):.4f}")
        self.losses = []


ckpt = ck.CheckpointCallback(ROOT, **SAVE)
ckpt.train(model, 3, train_data, callbacks=[Report("report.json"), ms.LossMonitor(4), ms.TimeMonitor()])
os._exit(0)
