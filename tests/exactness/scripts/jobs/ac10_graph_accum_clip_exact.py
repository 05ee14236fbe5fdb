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

net = nn.SequentialCell(nn.Dense(6, 12), nn.Tanh(), nn.Dense(12, 1))
lr = nn.cosine_decay_lr(0.0, 0.05, 12, 4, 3)
opt = nn.AdamWeightDecay(net.trainable_params(), lr, weight_decay=0.01)
cell = ck.AccumulationTrainCell(nn.WithLossCell(net, nn.MSELoss()), opt, accumulation_steps=3, clip_norm=1.0)
ck.CheckpointCallback(ROOT, **SAVE).train(ms.Model(cell), 3, train_data, callbacks=[ms.LossMonitor(5)])
os._exit(0)
