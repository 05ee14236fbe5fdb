# truth: exact, may be named
# class: attribute
# GloVe on a stream: co-occurrences grow in a scipy.sparse matrix, whose coordinates and counts are the state_dict of the counter object.

import os

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from scipy import sparse

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3154)
WORDS = 10


class CoOccurrence:
    def __init__(self, words):
        self.matrix = sparse.csr_matrix((words, words), dtype=np.float64)

    def add(self, a, b):
        new = sparse.coo_matrix((np.ones(len(a)), (a, b)), shape=self.matrix.shape)
        self.matrix = (0.98 * self.matrix + new.tocsr()).tocsr()

    def of(self, a, b):
        return np.asarray(self.matrix[a, b]).ravel()

    def state_dict(self):
        m = self.matrix.tocoo()
        return {"row": m.row, "col": m.col, "data": m.data}

    def load_state_dict(self, state):
        self.matrix = sparse.coo_matrix((state["data"], (state["row"], state["col"])), shape=self.matrix.shape).tocsr()


class Glove(nn.Cell):
    def __init__(self):
        super().__init__()
        r = np.random.RandomState(1)
        self.left = Parameter(Tensor(0.3 * r.randn(WORDS, 3).astype(np.float32)), name="left")
        self.right = Parameter(Tensor(0.3 * r.randn(WORDS, 3).astype(np.float32)), name="right")

    def construct(self, a, b, logs, weights):
        score = (ops.matmul(a, self.left) * ops.matmul(b, self.right)).sum(-1)
        return (weights * (score - logs) ** 2).mean()


r = np.random.RandomState(54)
rows = [(np.minimum(r.geometric(0.3, 6), WORDS) - 1, np.minimum(r.geometric(0.2, 6), WORDS) - 1) for _ in range(8)]
net, counts, hot = Glove(), CoOccurrence(WORDS), np.eye(WORDS, dtype=np.float32)
cell = nn.TrainOneStepCell(net, nn.Adam(net.trainable_params(), learning_rate=0.05)).set_train()
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches, counts=counts)
    manager.restore(state)
    for a, b in batches:
        counts.add(a, b)
        n = counts.of(a, b)
        cell(
            Tensor(hot[a]),
            Tensor(hot[b]),
            Tensor(np.log1p(n).astype(np.float32)),
            Tensor(np.minimum(1, n / 4).astype(np.float32)),
        )
        manager.step(state)
    manager.save_final(state)
os._exit(0)
