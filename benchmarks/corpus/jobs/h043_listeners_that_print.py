# truth: exact
# class: attribute
# Listeners of an event bus keep a heap of the worst batches, statistics and an ASCII curve; all of it is only shown.

import heapq
import os
import statistics

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_seed(91)


class Bus:
    def __init__(self):
        self._subscribers = {}

    def subscribe(self, topic):
        def register(fn):
            self._subscribers.setdefault(topic, []).append(fn)
            return fn

        return register

    def publish(self, topic, **payload):
        for fn in self._subscribers.get(topic, ()):
            fn(**payload)


bus = Bus()
worst, curve = [], []


@bus.subscribe("batch_end")
def keep_worst(loss, number):
    if len(worst) < 3:
        heapq.heappush(worst, (loss, number))
    else:
        heapq.heappushpop(worst, (loss, number))


@bus.subscribe("batch_end")
def draw(loss, number):
    curve.append(loss)
    print(f"{number:3d} " + "#" * min(60, int(20 * loss / statistics.fmean(curve))))


@bus.subscribe("training_end")
def summary():
    print("worst", sorted(worst, reverse=True))
    if len(curve) > 1:
        print("spread", statistics.stdev(curve))


r = np.random.RandomState(73)
label = r.randint(0, 2, 72).astype(np.int32)
X = (r.randn(72, 5) + label[:, None]).astype(np.float32)
rows = [(ms.Tensor(X[i : i + 9]), ms.Tensor(label[i : i + 9])) for i in range(0, 72, 9)]
net = nn.SequentialCell(nn.Dense(5, 7), nn.ReLU(), nn.Dense(7, 2))
cell = ck.AccumulationTrainCell(
    nn.WithLossCell(net, nn.CrossEntropyLoss()), nn.Adam(net.trainable_params(), 0.01), 1
).set_train()
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    point = manager.restore(state)
    for number, (x, y) in enumerate(batches, point.batches_delivered):
        loss = cell(x, y)
        bus.publish("batch_end", loss=float(loss.asnumpy()), number=number)
        manager.step(state)
    manager.save_final(state)
bus.publish("training_end")
os._exit(0)
