# truth: exact
# class: outside
# head: regression_8_arrays

net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
loss_fn = nn.MSELoss()


class Source:
    def __init__(self):
        self.epoch = 0

    def __iter__(self):
        self.epoch += 1
        order = np.random.RandomState(self.epoch).permutation(64)
        for i in order:
            yield X[i], Y[i]

    def __len__(self):
        return 64


optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)
data = ds.GeneratorDataset(Source(), ["x", "y"], python_multiprocessing=False).batch(8)
model = ms.Model(net, loss_fn, optimizer)
ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, data)
os._exit(0)
