# truth: differs
# class: outside
# A thread at the other end of a socket keeps the running mean of the losses; each step asks it for the next factor.

import hashlib
import os
import socket
import struct
import threading

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(62)
near, far = socket.socketpair()


class Server(threading.Thread):
    def run(self):
        mean = 0.0
        while data := far.recv(4):
            mean = 0.8 * mean + 0.2 * struct.unpack("f", data)[0]
            far.sendall(struct.pack("f", mean))


Server(daemon=True).start()
r = np.random.RandomState(62)
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
    near.sendall(struct.pack("f", float(loss)))
    (mean,) = struct.unpack("f", near.recv(4))
    opt(tuple(g * (0.5 + mean) for g in grads))
print(hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest(), flush=True)
os._exit(0)
