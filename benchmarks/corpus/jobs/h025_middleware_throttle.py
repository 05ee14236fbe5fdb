# truth: differs
# class: variable
# Training steps pass an onion of middlewares (as in a web framework); the throttling one keeps a token bucket in its closure.

import functools
import os

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_seed(73)


def throttle(rate, burst):
    tokens = burst

    def middleware(request, call_next):
        nonlocal tokens
        tokens = min(burst, tokens + rate)
        cost = float(np.abs(request["x"]).mean())
        request["scale"] = 1.0 if tokens >= cost else tokens / cost
        tokens = max(0.0, tokens - cost)
        return call_next(request)

    return middleware


def logging_middleware(request, call_next):
    loss = call_next(request)
    print(f"{request['scale']:.3f} {float(loss.asnumpy()):.5f}")
    return loss


def compose(handler, *middlewares):
    for middleware in reversed(middlewares):
        handler = functools.partial(middleware, call_next=handler)
    return handler


r = np.random.RandomState(11)
X = (r.randn(8, 6, 8) * r.uniform(0.5, 2, (8, 1, 1))).astype(np.float32)
Y = X[..., :1] - X[..., 1:2]

net = nn.SequentialCell(nn.Dense(8, 6), nn.ReLU(), nn.Dense(6, 1))
cell = ck.AccumulationTrainCell(nn.WithLossCell(net, nn.MSELoss()), nn.SGD(net.trainable_params(), 0.05), 1).set_train()


def train(request):
    return cell(ms.Tensor((request["x"] * request["scale"]).astype(np.float32)), ms.Tensor(request["y"]))


app = compose(train, logging_middleware, throttle(rate=0.6, burst=3.0))
batches = ck.data.resumable(list(zip(X, Y)), epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for x, y in batches:
        app({"x": x, "y": y, "scale": 1.0})
        manager.step(state)
    manager.save_final(state)
os._exit(0)
