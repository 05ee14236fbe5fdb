# truth: exact
# class: outside
# head: regression_8_arrays

net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
loss_fn = nn.MSELoss()


class Source:
    def __init__(self):
        self.visits = np.zeros(64)

    def __getitem__(self, i):
        self.visits[i] += 1
        return X[i] / np.float32(self.visits[i]), Y[i]

    def __len__(self):
        return 64


optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)
data = ds.GeneratorDataset(Source(), ["x", "y"], shuffle=False, python_multiprocessing=False).batch(8)
model = ms.Model(net, loss_fn, optimizer)
ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, data)
os._exit(0)
