# truth: differs
# class: attribute
# Prototypes of groups are kept in a small LRU memory, which is given by name; its state_dict sorts the slots, and with that forgets which one was used last.

import os
from collections import OrderedDict

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(4324)


class Prototypes:
    """the hidden mean of a group, as it was when the group came into the memory"""

    def __init__(self, capacity):
        self.capacity, self.slots = capacity, OrderedDict()

    def get(self, group, make):
        if group in self.slots:
            self.slots.move_to_end(group)
        else:
            self.slots[group] = make()
            if len(self.slots) > self.capacity:
                self.slots.popitem(last=False)
        return self.slots[group]

    def state_dict(self):
        return {"slots": [[group, self.slots[group]] for group in sorted(self.slots)]}

    def load_state_dict(self, state):
        self.slots = OrderedDict((group, np.array(value)) for group, value in state["slots"])


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Dense(5, 6, activation="tanh"), nn.Dense(6, 1)

    def construct(self, x, y, prototype):
        hidden = self.body(x)
        return ((self.head(hidden) - y) ** 2).mean() + 0.5 * ((hidden - prototype) ** 2).mean()


r = np.random.RandomState(24)
rows = []
for group in (0, 1, 0, 2, 1, 3, 0, 2):
    x = (r.randn(6, 5) + group).astype(np.float32)
    rows.append((group, ms.Tensor(x), ms.Tensor((x[:, :1] * x[:, 1:2]).astype(np.float32))))
net = Net()
cell = ck.AccumulationTrainCell(net, nn.Momentum(net.trainable_params(), 0.02, 0.9), accumulation_steps=1).set_train()
memory = Prototypes(3)

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches, memory=memory)
    manager.restore(state)
    for group, x, y in batches:
        prototype = memory.get(int(group), lambda: net.body(x).asnumpy().mean(0))
        cell(x, y, ms.Tensor(prototype))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
