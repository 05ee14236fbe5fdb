# truth: differs
# class: attribute
# The losses go through `logging`; a handler of one's own keeps the last ten and the loop asks it for their spread.

import hashlib
import logging
import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(26)


class Recent(logging.Handler):
    def __init__(self, size=10):
        super().__init__()
        self.size, self.values = size, []

    def emit(self, record):
        self.values = (self.values + [record.args[1]])[-self.size :]

    def spread(self):
        return float(np.std(self.values)) if len(self.values) > 1 else 0.3


log = logging.getLogger("train")
log.setLevel(logging.INFO)
log.propagate = False
log.addHandler(Recent())

r = np.random.RandomState(16)
x = r.randn(45, 5).astype(np.float32)
y = np.maximum(x[:, :1], x[:, 1:2]).astype(np.float32)
data = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(5)
net = nn.SequentialCell(nn.Dense(5, 10), nn.ReLU(), nn.Dense(10, 1))
opt = nn.Momentum(net.trainable_params(), 0.05, 0.8)
mse = nn.MSELoss()
grad_fn = ms.value_and_grad(lambda a, b: mse(net(a), b), None, opt.parameters)

run = ck.loop(
    os.environ["ROOT"],
    data,
    epochs=4,
    train=[net, opt],
    save=ck.SaveEvery(micro_steps=5),
    saving=ck.Saving(when_busy="wait"),
)
for a, b in run:
    number = run.step
    loss, grads = grad_fn(a, b)
    log.info("step %d loss %.4f", number, float(loss))
    damp = 1.0 / (1.0 + log.handlers[0].spread())
    opt(tuple(g * damp for g in grads))
print(hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest(), flush=True)
os._exit(0)
