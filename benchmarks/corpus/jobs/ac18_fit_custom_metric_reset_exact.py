# truth: exact
# class: callback
# head: saving_pynative_dataset_parameter

rng0 = np.random.default_rng(11)
X = rng0.normal(size=(80, 6)).astype(np.float32)
Y = (X[:, :1] * 0.7 - X[:, 1:2] ** 2).astype(np.float32)
train_data = ds.NumpySlicesDataset((X, Y), ["x", "y"], shuffle=True).batch(8)
VX = rng0.normal(size=(16, 6)).astype(np.float32)
VY = (VX[:, :1] * 0.7 - VX[:, 1:2] ** 2).astype(np.float32)
valid_data = ds.NumpySlicesDataset((VX, VY), ["x", "y"], shuffle=False).batch(8)
net = nn.SequentialCell(nn.Dense(6, 12), nn.Tanh(), nn.Dense(12, 1))


class WithinTolerance(ms.train.Metric):
    def __init__(self, tol):
        super().__init__()
        self.tol = tol
        self.clear()

    def clear(self):
        self.hits = self.total = 0

    def update(self, *inputs):
        pred, label = (self._convert_data(v) for v in inputs)
        self.hits += int((np.abs(pred - label) < self.tol).sum())
        self.total += pred.size

    def eval(self):
        return self.hits / max(self.total, 1)


opt = nn.Momentum(net.trainable_params(), 0.05, 0.9)
model = ms.Model(net, nn.MSELoss(), opt, metrics={"within": WithinTolerance(0.5)})
ckpt = ck.CheckpointCallback(ROOT, keep=ck.KeepLatest(2) | ck.KeepBest(1, metric="within", mode="max"), **SAVE)
ckpt.fit(model, 3, train_data, valid_data, callbacks=[ms.LossMonitor(5)])
os._exit(0)
