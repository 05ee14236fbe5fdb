# truth: differs
# class: attribute

import os
import zlib
import mindspore as ms, numpy as np, mindspore.dataset as ds
from mindspore import nn, ops, Tensor, Parameter
import ckptkit as ck

ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3)
rng0 = np.random.default_rng(31)
X = rng0.normal(size=(80, 6)).astype(np.float32)
Y = (np.abs(X).argmax(1) % 4).astype(np.int32)
order = rng0.permutation(80)
loader = [(order[i : i + 8], Tensor(X[order[i : i + 8]]), Tensor(Y[order[i : i + 8]])) for i in range(0, 80, 8)]
net = nn.SequentialCell(nn.Dense(6, 12), nn.ReLU(), nn.Dense(12, 4))

opt = nn.Adam(net.trainable_params(), 0.01)


def forward(x, y, w):
    return (ops.cross_entropy(net(x), y, reduction="none") * w).mean()


grad_fn = ms.value_and_grad(forward, None, opt.parameters)


class BloomFilter:
    def __init__(self, bits=256):
        self.bits, self.data = bits, bytearray(bits // 8)

    def positions(self, key):
        digest = zlib.crc32(str(key).encode())
        return [(digest >> s) % self.bits for s in (0, 8, 16)]

    def __contains__(self, key):
        return all(self.data[p >> 3] >> (p & 7) & 1 for p in self.positions(key))

    def add(self, key):
        for p in self.positions(key):
            self.data[p >> 3] |= 1 << (p & 7)


seen = BloomFilter()
batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for ids, x, y in batches:
        w = np.array([0.5 if int(i) in seen else 1.0 for i in ids], np.float32)
        for i in ids:
            seen.add(int(i))
        _, grads = grad_fn(x, y, Tensor(w))
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
