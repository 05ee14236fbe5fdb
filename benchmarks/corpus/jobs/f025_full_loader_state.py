# truth: differs
# class: data
# head: imports
# A DataLoader-like class shuffles with its own generator; its state_dict has the order, the place and the generator.


ms.set_seed(70)


class DataLoader:
    def __init__(self, x, y, batch_size, seed):
        self.x, self.y, self.batch_size = x, y, batch_size
        self.rng = np.random.Generator(np.random.PCG64(seed))
        self.order = None
        self.cursor = 0

    def __len__(self):
        return len(self.x) // self.batch_size

    def __iter__(self):
        if self.order is None or self.cursor >= len(self):
            self.order = self.rng.permutation(len(self.x))
            self.cursor = 0
        while self.cursor < len(self):
            pick = self.order[self.cursor * self.batch_size : (self.cursor + 1) * self.batch_size]
            self.cursor += 1
            yield self.x[pick], self.y[pick]

    def state_dict(self):
        s = self.rng.bit_generator.state
        return {
            "cursor": self.cursor,
            "order": None if self.order is None else self.order.copy(),
            "state": str(s["state"]["state"]),
            "inc": str(s["state"]["inc"]),
        }

    def load_state_dict(self, d):
        self.cursor = int(d["cursor"])
        self.order = None if d["order"] is None else np.asarray(d["order"]).copy()
        full = self.rng.bit_generator.state
        full["state"] = {"state": int(d["state"]), "inc": int(d["inc"])}
        self.rng.bit_generator.state = full


r = np.random.RandomState(1)
x = r.randn(50, 9).astype(np.float32)
loader = DataLoader(x, x[:, :2] ** 2, batch_size=5, seed=123)
net = nn.WithLossCell(nn.SequentialCell(nn.Dense(9, 12), nn.GELU(), nn.Dense(12, 2)), nn.L1Loss())
cell = ck.AccumulationTrainCell(net, nn.Momentum(net.trainable_params(), 0.05, 0.9), 4).set_train()
batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for xb, yb in batches:
        cell(ms.Tensor(xb), ms.Tensor(yb))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
