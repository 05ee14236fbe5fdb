# truth: exact
# class: data
# head: imports_dataset
# A ds.Sampler of one's own draws with its own generator, a class-balanced order per epoch; replayed by the pipeline.


ms.set_seed(39)


class BalancedSampler(ds.Sampler):
    """Alternates between the classes, each class in a fresh random order."""

    def __init__(self, labels, num, seed):
        super().__init__(num)
        self.by_class = [np.flatnonzero(labels == c) for c in np.unique(labels)]
        self.num = num
        self.rng = np.random.default_rng(seed)

    def __iter__(self):
        orders = [self.rng.permutation(c) for c in self.by_class]
        for i in range(self.num):
            own = orders[i % len(orders)]
            yield int(own[(i // len(orders)) % len(own)])


class Table:
    def __init__(self):
        r = np.random.RandomState(39)
        self.x = r.randn(70, 6).astype(np.float32)
        self.y = (self.x[:, 0] > 0.9).astype(np.int32)

    def __getitem__(self, i):
        return self.x[i], self.y[i]

    def __len__(self):
        return len(self.x)


table = Table()
dataset = ds.GeneratorDataset(table, ["x", "y"], sampler=BalancedSampler(table.y, 48, 3), num_parallel_workers=1).batch(
    6
)

net = nn.SequentialCell(nn.Dense(6, 8), nn.ReLU(), nn.Dense(8, 2))
loss = nn.WithLossCell(net, nn.CrossEntropyLoss())
cell = ck.AccumulationTrainCell(loss, nn.Adam(net.trainable_params(), 0.01), 2).set_train()
batches = ck.data.resumable(dataset, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for x, y in batches:
        cell(x, y)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
