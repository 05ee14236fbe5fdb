# truth: differs
# class: random
# head: imports
# A shuffling loader's state_dict has the present order and the place in it, but not the generator that will make the order of the next epoch; GRAPH, K = 2.


ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(4331)


class ShuffledBatches:
    def __init__(self, x, y, batch, seed):
        self.x, self.y, self.batch = x, y, batch
        self.rng = np.random.default_rng(seed)
        self.order = self.rng.permutation(len(x))
        self.at = 0

    def __len__(self):
        return len(self.x) // self.batch

    def __iter__(self):
        if self.at == len(self):
            self.order = self.rng.permutation(len(self.x))
            self.at = 0
        while self.at < len(self):
            chosen = self.order[self.at * self.batch : (self.at + 1) * self.batch]
            self.at += 1
            yield self.x[chosen], self.y[chosen]

    def state_dict(self):
        return {"order": self.order.copy(), "at": self.at}

    def load_state_dict(self, state):
        self.order, self.at = np.array(state["order"]), int(state["at"])


r = np.random.RandomState(31)
x = r.randn(48, 5).astype(np.float32)
y = (x[:, :1] * x[:, 1:2] - x[:, 2:3]).astype(np.float32)
net = nn.SequentialCell(nn.Dense(5, 8), nn.Tanh(), nn.Dense(8, 1))
loss = nn.WithLossCell(net, nn.MSELoss())
cell = ck.AccumulationTrainCell(loss, nn.Momentum(loss.trainable_params(), 0.05, 0.9), accumulation_steps=2).set_train()

batches = ck.data.resumable(ShuffledBatches(x, y, 6, seed=431), epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for a, b in batches:
        cell(ms.Tensor(a), ms.Tensor(b))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
