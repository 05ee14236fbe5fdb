# truth: exact
# class: outside
# head: regression_8_arrays

net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
loss_fn = nn.MSELoss()


class HardSampler(ds.Sampler):
    def __init__(self):
        super().__init__(64)
        self.rng = np.random.default_rng(9)

    def __iter__(self):
        for i in self.rng.permutation(64):
            yield int(i)


class Source:
    def __getitem__(self, i):
        return X[i], Y[i]

    def __len__(self):
        return 64


optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)
data = ds.GeneratorDataset(Source(), ["x", "y"], sampler=HardSampler(), python_multiprocessing=False).batch(8)
model = ms.Model(net, loss_fn, optimizer)
ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, data)
os._exit(0)
