# truth: differs
# class: attribute
# Hand-written SGD whose rate lives in the argparse namespace and is multiplied down whenever the loss rises.

import argparse
import hashlib
import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.08)
parser.add_argument("--decay", type=float, default=0.9)
parser.add_argument("--epochs", type=int, default=5)
args = parser.parse_args([])

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(11)
rng = np.random.RandomState(0)
x = rng.randn(64, 5).astype(np.float32)
y = np.sin(x[:, :1]).astype(np.float32)
data = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(8)
net = nn.SequentialCell(nn.Dense(5, 12), nn.Tanh(), nn.Dense(12, 1))
mse = nn.MSELoss()
grad_fn = ms.value_and_grad(lambda a, b: mse(net(a), b), None, net.trainable_params())


def sgd(params, grads):
    for p, g in zip(params, grads):
        ops.assign_sub(p, args.lr * g)


def main():
    batches = ck.data.resumable(data, epochs=args.epochs)
    with ck.CheckpointManager(
        os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
    ) as manager:
        state = ck.StateManager([net], batches)
        manager.restore(state)
        for a, b in batches:
            loss, grads = grad_fn(a, b)
            sgd(net.trainable_params(), grads)
            if float(loss) > 0.25:
                args.lr *= args.decay
            manager.step(state, {"loss": loss})
        manager.save_final(state)


main()
print(hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest(), flush=True)
os._exit(0)
