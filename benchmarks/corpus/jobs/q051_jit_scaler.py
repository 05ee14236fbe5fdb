# truth: exact
# class: variable
# A compiled training step with a dynamic loss scaler that is given by name.

import hashlib
import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import amp, nn

import ckptkit as ck

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(61)
r = np.random.RandomState(51)
x = r.randn(56, 5).astype(np.float32)
y = (x[:, :1] * x[:, 1:2]).astype(np.float32)
data = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(7)
net = nn.SequentialCell(nn.Dense(5, 10), nn.Tanh(), nn.Dense(10, 1))
opt = nn.Momentum(net.trainable_params(), 0.05, 0.9)
mse = nn.MSELoss()
scaler = amp.DynamicLossScaler(2.0**8, 2, 6)


def forward(a, b):
    return scaler.scale(mse(net(a), b))


gradients = ms.value_and_grad(forward, None, opt.parameters)


@ms.jit
def train_step(a, b):
    loss, grads = gradients(a, b)
    grads = scaler.unscale(grads)
    finite = amp.all_finite(grads)
    scaler.adjust(finite)
    opt(grads)
    return scaler.unscale(loss)


for a, b in ck.loop(
    os.environ["ROOT"],
    data,
    epochs=4,
    train=[net, opt],
    stateful={"scaler": scaler},
    save=ck.SaveEvery(micro_steps=5),
    saving=ck.Saving(when_busy="wait"),
):
    loss = train_step(a, b)
print(hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest(), flush=True)
os._exit(0)
