# truth: differs
# class: global
# head: imports
# Losses of the samples go to a np.memmap in the working directory, and weight the samples in the next epoch.


ms.set_seed(12)
N = 40


class SampleWeighted(nn.Cell):
    def __init__(self):
        super().__init__()
        self.f = nn.SequentialCell(nn.Dense(6, 8), nn.ReLU(), nn.Dense(8, 1))

    def each(self, x, y):
        return ((self.f(x) - y) ** 2).reshape(-1)

    def construct(self, x, y, w):
        return (self.each(x, y) * w).mean()


def open_hardness(path="hardness.dat"):
    if not os.path.exists(path):
        m = np.memmap(path, dtype=np.float32, mode="w+", shape=(N,))
        m[:] = 1.0
        m.flush()
    return np.memmap(path, dtype=np.float32, mode="r+", shape=(N,))


rs = np.random.RandomState(12)
X = rs.randn(N, 6).astype(np.float32)
Y = (X[:, :1] * X[:, 1:2]).astype(np.float32)

hardness = open_hardness()
model = SampleWeighted()
cell = ck.AccumulationTrainCell(model, nn.Adam(model.trainable_params(), 0.02), 2).set_train()
batches = ck.data.resumable([np.arange(i, i + 5) for i in range(0, N, 5)], epochs=4)

with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for idx in batches:
        x, y = ms.Tensor(X[idx]), ms.Tensor(Y[idx])
        w = hardness[idx] / hardness.mean()
        cell(x, y, ms.Tensor(np.asarray(w, np.float32)))
        hardness[idx] = 0.1 + model.each(x, y).asnumpy()
        hardness.flush()
        manager.step(state)
    manager.save_final(state)
os._exit(0)
