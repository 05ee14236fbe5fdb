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
targets = np.zeros((80, 4), np.float32)


def forward(x, y, t):
    logits = net(x)
    p = ops.softmax(logits, -1)
    reg = ops.log(1 - (p * t).sum(-1).clip(0, 0.99)).mean()
    return ops.cross_entropy(logits, y) + 0.5 * reg, ops.stop_gradient(p)


grad_fn = ms.value_and_grad(forward, None, opt.parameters, has_aux=True)
batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for index, x, y in batches:
        (loss, p), grads = grad_fn(x, y, Tensor(targets[index]))
        opt(grads)
        targets[index] = 0.7 * targets[index] + 0.3 * p.asnumpy()
        manager.step(state)
    manager.save_final(state)
os._exit(0)
