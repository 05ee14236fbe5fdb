"""Nothing is wrong with it: Model.train, K = 3, a stateful object given by name. Sets no seed."""

from pathlib import Path

from mindspore.train import Callback, Model
from tiny import Net, data, optimizer_of

import ckptkit as ck


class Counted(Callback):
    def __init__(self):
        super().__init__()
        self.seen = 0

    def on_train_step_end(self, run_context):
        self.seen += 1

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = state["seen"]


net = Net()
model = Model(ck.AccumulationTrainCell(net, optimizer_of(net), accumulation_steps=3, clip_norm=1.0))
counted = Counted()
ckpt = ck.CheckpointCallback("runs/mine", save=ck.SaveEvery(micro_steps=2), stateful={"counted": counted})
ckpt.train(model, 5, data().batch(4), callbacks=[counted])
Path("exported").write_text("the end of the script")
