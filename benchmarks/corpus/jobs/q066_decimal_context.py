# truth: differs
# class: variable
# The factors are decimals whose context gets one digit less every few steps.

import hashlib
import os
import decimal

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(66)
context = decimal.Context(prec=9)
r = np.random.RandomState(66)
rows = [(ms.Tensor(r.randn(5, 4).astype(np.float32)), ms.Tensor(r.randn(5, 1).astype(np.float32))) for _ in range(8)]
net = nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 1))
opt = nn.Momentum(net.trainable_params(), 0.03, 0.9)
mse = nn.MSELoss()
grad_fn = ms.value_and_grad(lambda a, b: mse(net(a), b), None, opt.parameters)
run = ck.loop(
    os.environ["ROOT"],
    rows,
    epochs=4,
    train=[net, opt],
    save=ck.SaveEvery(micro_steps=5),
    saving=ck.Saving(when_busy="wait"),
)
for a, b in run:
    number = run.step
    loss, grads = grad_fn(a, b)
    if number % 4 == 0:
        context.prec = max(2, context.prec - 1)
    factor = context.divide(decimal.Decimal(2), decimal.Decimal(3) + decimal.Decimal(number))
    opt(tuple(g * float(factor) for g in grads))
print(hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest(), flush=True)
os._exit(0)
