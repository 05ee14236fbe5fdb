# differs, named
import os
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
bank = np.memmap("bank.dat", dtype=np.float32, mode="w+", shape=(80, 4))


def forward(x, positive, negative):
    z = net(x)
    pos = (z * positive).sum(-1)
    neg = ops.matmul(z, negative.T)
    return (ops.logsumexp(neg, 1) - pos).mean() + 0.1 * (z**2).mean(), z


grad_fn = ms.value_and_grad(forward, None, opt.parameters, has_aux=True)
batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for ids, x, y in batches:
        negatives = np.array(bank[(ids + 40) % 80])
        (_, z), grads = grad_fn(x, Tensor(np.array(bank[ids])), Tensor(negatives))
        opt(grads)
        bank[ids] = 0.5 * bank[ids] + 0.5 * z.asnumpy()
        manager.step(state)
    manager.save_final(state)
os._exit(0)
