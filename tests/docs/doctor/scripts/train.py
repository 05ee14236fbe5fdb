"""`Model.train`, K = 3, with an object given by name; its arguments say what is wrong with it. Sets no seed."""

import sys
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import nn
from mindspore.train import Callback, Model
from tiny import Net, data, optimizer_of

import ckptkit as ck

what = sys.argv[1:]


class Counted(Callback):
    def __init__(self):
        super().__init__()
        self.seen = 0

    def on_train_step_end(self, run_context):
        self.seen += 1
        if "draws" in what:
            np.random.random()

    def state_dict(self):
        if "draws-in-save" in what:
            np.random.random()
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = state["seen"]


def augment(x):
    return x + np.random.standard_normal(x.shape).astype(np.float32)


if "seed" in what:
    ms.set_seed(5)
dataset = data(np.random) if "drawn-data" in what else data()
if "drawing-map" in what:
    dataset = dataset.map(augment, ["x"], num_parallel_workers=1)
net = Net(drop=nn.Dropout(p=0.5) if "dropout" in what else None)
cell = ck.AccumulationTrainCell(net, optimizer_of(net), accumulation_steps=3, clip_norm=1.0)
counted = Counted()
ckpt = ck.CheckpointCallback(
    "runs/mine",
    mirror=[argument for argument in what if argument.startswith("mirror")],
    save=ck.SaveEvery(micro_steps=5),
    keep=ck.KeepLatest(2),
    saving=ck.Saving(mid_cycle=next((argument for argument in what if argument in ("align", "rewind")), "exact")),
    stateful={"counted": counted},
)
ckpt.train(Model(cell), 5, dataset.batch(4), callbacks=[counted])
Path("exported").write_text("the end of the script")
