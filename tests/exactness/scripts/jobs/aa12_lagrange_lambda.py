# differs, named
import os
import mindspore as ms, numpy as np, mindspore.dataset as ds
from mindspore import nn, ops, Tensor, Parameter
import ckptkit as ck

ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3)
rng0 = np.random.default_rng(11)
X = rng0.normal(size=(80, 6)).astype(np.float32)
Y = (X[:, :1] * 0.7 - X[:, 1:2] ** 2 + 0.1 * rng0.normal(size=(80, 1))).astype(np.float32)
loader = [(Tensor(X[i : i + 8]), Tensor(Y[i : i + 8])) for i in range(0, 80, 8)]
net = nn.SequentialCell(nn.Dense(6, 12), nn.Tanh(), nn.Dense(12, 1))

loss_fn = nn.MSELoss()
opt = nn.Adam(net.trainable_params(), 0.01)


def forward(x, y, lam, mu):
    violation = (net(x).mean() - 0.2) ** 2
    return loss_fn(net(x), y) + lam * violation + 0.5 * mu * violation**2, violation


grad_fn = ms.value_and_grad(forward, None, opt.parameters, has_aux=True)


def main():
    lam, mu = 0.0, 1.0
    batches = ck.data.resumable(loader, epochs=3)
    with ck.CheckpointManager(ROOT, **SAVE) as manager:
        state = ck.StateManager([net, opt], batches)
        manager.restore(state)
        for x, y in batches:
            (loss, violation), grads = grad_fn(x, y, lam, mu)
            opt(grads)
            lam = max(0.0, lam + mu * float(violation))
            mu = min(mu * 1.1, 20.0)
            manager.step(state)
        manager.save_final(state)


if __name__ == "__main__":
    main()
os._exit(0)
