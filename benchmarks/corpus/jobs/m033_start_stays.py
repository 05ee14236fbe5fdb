# truth: differs
# class: data
# head: pynative
# A loader skips the first `start_index` batches after load_state_dict, but nobody sets that back: the epochs after the resumed one are cut as well.

ms.set_seed(4333)


class ResumableLoader:
    def __init__(self, x, y, size, seed):
        self.x, self.y, self.size, self.seed = x, y, size, seed
        self.epoch, self.index = 0, 0
        self.start_index = 0

    @property
    def batches_per_epoch(self):
        return len(self.x) // self.size

    def __iter__(self):
        if self.index >= self.batches_per_epoch:
            self.epoch += 1
            self.index = 0
        order = np.random.default_rng([self.seed, self.epoch]).permutation(len(self.x))
        for i in range(self.start_index, self.batches_per_epoch):
            rows = order[i * self.size : (i + 1) * self.size]
            self.index = i + 1
            yield self.x[rows], self.y[rows]

    def state_dict(self):
        return {"epoch": self.epoch, "index": self.index}

    def load_state_dict(self, state):
        self.epoch, self.index = state["epoch"], state["index"]
        self.start_index = self.index if self.index < self.batches_per_epoch else 0


r = np.random.RandomState(33)
x = r.randn(48, 5).astype(np.float32)
y = np.maximum(x[:, :1], x[:, 1:2]).astype(np.float32)
net = nn.SequentialCell(nn.Dense(5, 8), nn.ReLU(), nn.Dense(8, 1))
loss = nn.WithLossCell(net, nn.MSELoss())
cell = ck.AccumulationTrainCell(loss, nn.Adam(loss.trainable_params(), 0.02), accumulation_steps=2).set_train()

batches = ck.data.resumable(ResumableLoader(x, y, 6, seed=433), epochs=4)
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
