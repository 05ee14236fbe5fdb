# truth: exact
# class: callback
# Half-way rollback to the best weights; these and the best loss are Parameters of a Snapshot cell that is given in stateful=.

import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops
from mindspore.train import Callback

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3118)


class Snapshot(nn.Cell):
    def __init__(self, params):
        super().__init__()
        self.saved = ParameterTuple(params).clone(prefix="best", init="same")
        self.lowest = Parameter(Tensor(1e9, ms.float32), name="lowest_loss", requires_grad=False)


class PullBack(Callback):
    def __init__(self, params, snapshot):
        super().__init__()
        self.params = params
        self.snapshot = snapshot

    def on_train_step_end(self, run_context):
        loss = float(run_context.original_args().net_outputs.asnumpy())
        lowest = float(self.snapshot.lowest.asnumpy())
        if loss < lowest:
            for s, p in zip(self.snapshot.saved, self.params):
                ops.assign(s, p)
            ops.assign(self.snapshot.lowest, Tensor(loss, ms.float32))
        elif loss > 1.2 * lowest:
            for s, p in zip(self.snapshot.saved, self.params):
                ops.assign(p, (p + s) * 0.5)


r = np.random.RandomState(18)
x = r.randn(32, 5).astype(np.float32)
y = (3 * np.sin(x[:, :1] * x[:, 1:2])).astype(np.float32)
net = nn.SequentialCell(nn.Dense(5, 8), nn.Tanh(), nn.Dense(8, 1))
opt = nn.Momentum(net.trainable_params(), 0.08, 0.9)
best = Snapshot(net.trainable_params())
ckpt = ck.CheckpointCallback(
    os.environ["ROOT"],
    save=ck.SaveEvery(micro_steps=5),
    saving=ck.Saving(when_busy="wait"),
    stateful={"best": best},
)
ckpt.train(
    ms.Model(net, nn.MSELoss(), opt),
    3,
    ds.NumpySlicesDataset((x, y), ["x", "y"]).batch(4),
    callbacks=[PullBack(net.trainable_params(), best)],
)
os._exit(0)
