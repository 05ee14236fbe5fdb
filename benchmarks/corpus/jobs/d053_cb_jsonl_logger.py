# truth: exact, may be named
# class: callback
# the callback only writes losses and their minimum to a log file and keeps a list of records for a table at the end

import json
import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn
from mindspore.train import Callback, Model

import ckptkit as ck

ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(1)
g = np.random.default_rng(5)
X, Y = g.normal(size=(64, 8)).astype(np.float32), g.normal(size=(64, 1)).astype(np.float32)
data = ds.NumpySlicesDataset((X, Y), ["x", "y"], shuffle=False).batch(8)


class JsonlLogger(Callback):
    def __init__(self, path, every=2):
        super().__init__()
        self.path, self.every = path, every
        self.records, self.lowest = [], float("inf")
        self.steps = 0

    def on_train_step_end(self, run_context):
        cb_params = run_context.original_args()
        self.steps += 1
        loss = float(cb_params.net_outputs.asnumpy())
        self.lowest = min(self.lowest, loss)
        self.records.append({"epoch": cb_params.cur_epoch_num, "loss": loss, "lowest": self.lowest})
        if self.steps % self.every == 0:
            with open(self.path, "a") as f:
                f.write(json.dumps(self.records[-1]) + "\n")

    def on_train_end(self, run_context):
        print(f"{'epoch':>6} {'loss':>10} {'lowest':>10}")
        for r in self.records[-5:]:
            print(f"{r['epoch']:>6} {r['loss']:>10.5f} {r['lowest']:>10.5f}")


net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
model = Model(net, nn.MSELoss(), nn.Adam(net.trainable_params(), 0.01))
logger = JsonlLogger(f"{ROOT}.log.jsonl")
ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, data, callbacks=[logger])
os._exit(0)
