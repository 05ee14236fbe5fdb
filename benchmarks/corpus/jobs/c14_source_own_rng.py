# truth: exact
# class: outside
# head: regression_8_arrays

net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
loss_fn = nn.MSELoss()


class Source:
    def __init__(self):
        self.rng = np.random.RandomState(4)

    def __getitem__(self, i):
        return X[i] + self.rng.randn(8).astype(np.float32) * np.float32(0.1), Y[i]

    def __len__(self):
        return 64


optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)
data = ds.GeneratorDataset(Source(), ["x", "y"], shuffle=False, python_multiprocessing=False).batch(8)
model = ms.Model(net, loss_fn, optimizer)
ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, data)
os._exit(0)
