# truth: differs
# class: attribute
# head: imports
# Experience replay with reservoir sampling: the generator is given by name, the buffer of old samples is forgotten.


ms.set_seed(52)


class Reservoir(list):
    """A list that keeps a uniform sample of all that was offered."""

    def __init__(self, capacity, rng):
        super().__init__()
        self.capacity = capacity
        self.rng = rng
        self.offered = 0

    def offer(self, item):
        self.offered += 1
        if len(self) < self.capacity:
            self.append(item)
        elif (j := int(self.rng.integers(self.offered))) < self.capacity:
            self[j] = item

    def draw(self, n):
        return [self[i] for i in self.rng.integers(len(self), size=n)] if self else []


rng = np.random.default_rng(2024)
memory = Reservoir(10, rng)

stream = np.random.RandomState(0)
X = np.cumsum(stream.randn(28, 3, 4) * 0.3, axis=0).astype(np.float32)
Y = X.sum(-1, keepdims=True)

net = nn.WithLossCell(nn.SequentialCell(nn.Dense(4, 10), nn.Sigmoid(), nn.Dense(10, 1)), nn.HuberLoss())
cell = ck.AccumulationTrainCell(net, nn.Momentum(net.trainable_params(), 0.1, 0.7), 3, normalize="samples").set_train()

batches = ck.data.resumable(list(zip(X, Y)), epochs=1)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches, rng=rng)
    manager.restore(state)
    for x, y in batches:
        old = memory.draw(3)
        xb = np.stack([*x, *(o[0] for o in old)])
        yb = np.stack([*y, *(o[1] for o in old)])
        cell(ms.Tensor(xb), ms.Tensor(yb))
        for pair in zip(x, y):
            memory.offer(pair)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
