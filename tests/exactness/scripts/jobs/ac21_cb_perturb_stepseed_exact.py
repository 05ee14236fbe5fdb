# exact
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
net = nn.SequentialCell(nn.Dense(6, 12), nn.Tanh(), nn.Dense(12, 1))
opt = nn.Momentum(net.trainable_params(), 0.05, 0.9)
model = ms.Model(net, nn.MSELoss(), opt)


class Perturb(ms.Callback):
    def __init__(self, params, seed):
        super().__init__()
        self.params, self.seed = params, seed

    def on_train_step_end(self, run_context):
        step = run_context.original_args().cur_step_num
        if step % 3 == 0:
            rng = np.random.default_rng([self.seed, step])
            for p in self.params:
                ops.assign(p, p + Tensor((0.01 * rng.standard_normal(p.shape)).astype(np.float32)))


ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, train_data, callbacks=[Perturb(net.trainable_params(), 5)])
os._exit(0)
