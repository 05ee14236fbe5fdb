# truth: exact, may be named
# class: data
# head: pynative
# A loader that knows its place in the epoch; the order comes from its own generator.

ms.set_seed(153)


class ShuffledLoader:
    def __init__(self, x, y, size, seed=0):
        self.x, self.y, self.size = x, y, size
        self.rng = np.random.RandomState(seed)
        self.place = 0

    def __len__(self):
        return len(self.x) // self.size

    def __iter__(self):
        order = self.rng.permutation(len(self.x))
        while self.place < len(self):
            rows = order[self.place * self.size : (self.place + 1) * self.size]
            self.place += 1
            yield self.x[rows], self.y[rows]
        self.place = 0

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.place = state["place"]


r = np.random.RandomState(54)
x = r.randn(60, 6).astype(np.float32)
y = (x[:, :1] + np.sin(x[:, 1:2])).astype(np.float32)
net = nn.SequentialCell(nn.Dense(6, 12), nn.Tanh(), nn.Dense(12, 1))
optimizer = nn.Adam(net.trainable_params(), 1e-2)
grad_fn = ms.value_and_grad(lambda x, y: ((net(x) - y) ** 2).mean(), None, net.trainable_params())

batches = ck.data.resumable(ShuffledLoader(x, y, 6), epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, optimizer], batches)
    manager.restore(state)
    for xb, yb in batches:
        loss, grads = grad_fn(ms.Tensor(xb), ms.Tensor(yb))
        optimizer(grads)
        manager.step(state, {"loss": loss})
    manager.save_final(state)
os._exit(0)
