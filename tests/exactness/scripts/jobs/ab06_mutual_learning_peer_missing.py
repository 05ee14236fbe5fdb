# differs, named
import os
import mindspore as ms, numpy as np, mindspore.dataset as ds
from mindspore import nn, ops, Tensor, Parameter
import ckptkit as ck

ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3)
rng0 = np.random.default_rng(21)
X = rng0.normal(size=(80, 6)).astype(np.float32)
Y = (np.abs(X).argmax(1) % 4).astype(np.int32)
loader = [(Tensor(X[i : i + 8]), Tensor(Y[i : i + 8])) for i in range(0, 80, 8)]


def make(width):
    return nn.SequentialCell(nn.Dense(6, width), nn.ReLU(), nn.Dense(width, 4))


nets = [make(8), make(10)]
for i, n in enumerate(nets):
    n.update_parameters_name(f"net{i}.")
optims = [nn.Momentum(n.trainable_params(), 0.05, 0.9) for n in nets]


def mutual(i):
    def forward(x, y, other):
        logits = nets[i](x)
        return ops.cross_entropy(logits, y) - (other * ops.log_softmax(logits, -1)).sum(-1).mean()

    return ms.value_and_grad(forward, None, optims[i].parameters)


steps = [mutual(0), mutual(1)]
batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([nets[0], optims[0]], batches)
    manager.restore(state)
    for x, y in batches:
        soft = [ops.softmax(n(x), -1) for n in nets]
        for i in (0, 1):
            _, grads = steps[i](x, y, soft[1 - i])
            optims[i](grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
