# truth: differs
# class: data
# head: pynative
# The loader delivers lazy batches whose views are only drawn when the loop asks for them, from the loader's generator; replay counts batches and draws nothing.

ms.set_seed(4336)


class LazyBatch:
    def __init__(self, loader, rows):
        self.loader, self.rows = loader, rows

    def view(self):
        x = self.loader.x[self.rows]
        return ms.Tensor((x + self.loader.rng.normal(0, 0.3, x.shape)).astype(np.float32))


class LazyLoader:
    def __init__(self, x, size, seed):
        self.x, self.size = x, size
        self.rng = np.random.default_rng(seed)

    def __len__(self):
        return len(self.x) // self.size

    def __iter__(self):
        for i in range(len(self)):
            yield LazyBatch(self, np.arange(i * self.size, (i + 1) * self.size))


class TwoViews(nn.Cell):
    """both views of a row should have the same code, and codes should spread"""

    def __init__(self, inputs, width):
        super().__init__()
        self.encode = nn.SequentialCell(nn.Dense(inputs, 8), nn.Tanh(), nn.Dense(8, width))

    def construct(self, a, b):
        a, b = self.encode(a), self.encode(b)
        spread = ((a - a.mean(0)) ** 2).mean()
        return ((a - b) ** 2).mean() + (1 - spread) ** 2


r = np.random.RandomState(36)
x = (r.randn(48, 3) @ r.randn(3, 6)).astype(np.float32)
net = TwoViews(6, 3)
cell = ck.AccumulationTrainCell(net, nn.Adam(net.trainable_params(), 0.01), accumulation_steps=2).set_train()

batches = ck.data.resumable(LazyLoader(x, 6, seed=436), epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for batch in batches:
        cell(batch.view(), batch.view())
        manager.step(state)
    manager.save_final(state)
os._exit(0)
