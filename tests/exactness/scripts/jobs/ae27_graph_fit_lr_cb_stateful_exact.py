# exact, quiet
import os
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
valid_data = ds.NumpySlicesDataset((X[:16], Y[:16]), ["x", "y"], shuffle=False).batch(8)
net = nn.SequentialCell(nn.Dense(6, 12), nn.Tanh(), nn.Dense(12, 1))
opt = nn.Momentum(net.trainable_params(), 0.05, 0.9)
model = ms.Model(net, nn.MSELoss(), opt, metrics={"mae": nn.MAE()})


class SlopeRate(ms.Callback):
    def __init__(self):
        super().__init__()
        self.last, self.rate = 0.0, 0.05

    def on_train_step_end(self, run_context):
        params = run_context.original_args()
        loss = float(params.net_outputs)
        self.rate = float(np.clip(self.rate * (1.05 if loss < self.last else 0.9), 0.005, 0.1))
        self.last = round(loss, 3)
        ops.assign(params.optimizer.learning_rate, Tensor(self.rate, ms.float32))

    def state_dict(self):
        return {"last": self.last, "rate": self.rate}

    def load_state_dict(self, state):
        self.last, self.rate = state["last"], state["rate"]


slope = SlopeRate()
ckpt = ck.CheckpointCallback(ROOT, stateful={"slope": slope}, **SAVE)
ckpt.fit(model, 3, train_data, valid_data, callbacks=[slope])
os._exit(0)
