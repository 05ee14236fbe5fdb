# truth: exact
# class: random
# DP-SGD with a fixed clipping norm: gradients per example, noise from a generator given by name, epsilon only printed.

import math
import os
from dataclasses import dataclass

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck


@dataclass(frozen=True)
class Privacy:
    clip: float = 0.8
    sigma: float = 0.5
    delta: float = 1e-5


def per_example(grad_fn, x, y, clip):
    """Sum of clipped gradients."""
    total, losses = None, []
    for i in range(x.shape[0]):
        loss, grads = grad_fn(ms.Tensor(x[i : i + 1]), ms.Tensor(y[i : i + 1]))
        arrays = [g.asnumpy().copy() for g in grads]
        norm = math.sqrt(sum(float((a**2).sum()) for a in arrays))
        factor = min(1.0, clip / (norm + 1e-12))
        arrays = [a * np.float32(factor) for a in arrays]
        total = arrays if total is None else [t + a for t, a in zip(total, arrays)]
        losses.append(float(loss.asnumpy()))
    return total, float(np.mean(losses))


def main():
    ms.set_seed(4)
    cfg = Privacy()
    data_rng = np.random.default_rng(99)
    rows = []
    for _ in range(8):
        x = data_rng.normal(size=(4, 8)).astype(np.float32)
        rows.append((x, (x[:, 0] > x[:, 1]).astype(np.int32)))
    net = nn.SequentialCell(nn.Dense(8, 6), nn.Tanh(), nn.Dense(6, 2))
    criterion = nn.CrossEntropyLoss()
    params = net.trainable_params()
    opt = nn.Adam(params, learning_rate=0.02)
    grad_fn = ms.value_and_grad(lambda x, y: criterion(net(x), y), None, params)
    noise_rng = np.random.default_rng(7)
    batches = ck.data.resumable(rows, epochs=3)
    with ck.CheckpointManager(
        os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
    ) as manager:
        state = ck.StateManager([net, opt], batches, noise=noise_rng)
        start = manager.restore(state).batches_delivered
        for step, (x, y) in enumerate(batches, start + 1):
            total, loss = per_example(grad_fn, x, y, cfg.clip)
            noisy = []
            for t in total:
                noise = noise_rng.normal(0.0, cfg.sigma * cfg.clip, t.shape)
                noisy.append(ms.Tensor(((t + noise) / len(x)).astype(np.float32)))
            opt(tuple(noisy))
            eps = math.sqrt(2 * step * math.log(1 / cfg.delta)) / cfg.sigma
            print(f"step {step} loss {loss:.4f} (eps about {eps:.1f})")
            manager.step(state)
        manager.save_final(state)


main()
os._exit(0)
