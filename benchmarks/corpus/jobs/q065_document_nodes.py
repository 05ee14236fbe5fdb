# truth: differs
# class: variable
# The record is a document of minidom; the number of its warnings is the strength of the decay.

import hashlib
import os
import xml.dom.minidom

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(65)
document = xml.dom.minidom.getDOMImplementation().createDocument(None, "run", None)
record = document.documentElement
r = np.random.RandomState(65)
rows = [(ms.Tensor(r.randn(5, 4).astype(np.float32)), ms.Tensor(r.randn(5, 1).astype(np.float32))) for _ in range(8)]
net = nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 1))
opt = nn.Momentum(net.trainable_params(), 0.03, 0.9)
mse = nn.MSELoss()
grad_fn = ms.value_and_grad(lambda a, b: mse(net(a), b), None, opt.parameters)
for a, b in ck.loop(
    os.environ["ROOT"],
    rows,
    epochs=4,
    train=[net, opt],
    save=ck.SaveEvery(micro_steps=5),
    saving=ck.Saving(when_busy="wait"),
):
    loss, grads = grad_fn(a, b)
    strength = 1e-3 * len(document.getElementsByTagName("warning"))
    opt(tuple(g + strength * p for g, p in zip(grads, opt.parameters)))
    if float(loss) > 0.7:
        warning = document.createElement("warning")
        warning.setAttribute("loss", f"{float(loss):.4f}")
        record.appendChild(warning)
print(hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest(), flush=True)
os._exit(0)
