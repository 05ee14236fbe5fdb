# truth: exact
# class: data
# head: imports_dataset
# A dataset map mixes every sample with the one before it; it is a stateful object, but the pipeline is replayed.


ms.set_seed(5)
ms.set_context(mode=ms.GRAPH_MODE)

rs = np.random.RandomState(0)
feats = rs.rand(48, 10).astype(np.float32)
target = feats @ rs.rand(10, 2).astype(np.float32)


class PairMix:
    """x <- 0.8 x + 0.2 previous x, the same for y"""

    def __init__(self, alpha=0.2):
        self.alpha = alpha
        self.last = None

    def __call__(self, x, y):
        if self.last is None:
            self.last = (x.copy(), y.copy())
        px, py = self.last
        self.last = (x.copy(), y.copy())
        a = np.float32(self.alpha)
        return (1 - a) * x + a * px, (1 - a) * y + a * py


def create_dataset():
    data = ds.NumpySlicesDataset({"x": feats, "y": target}, shuffle=True)
    data = data.map(PairMix(), input_columns=["x", "y"], output_columns=["x", "y"], num_parallel_workers=1)
    return data.batch(6, drop_remainder=True)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Dense(10, 16, activation="relu")
        self.fc2 = nn.Dense(16, 2)

    def construct(self, x):
        return self.fc2(self.fc1(x))


net = nn.WithLossCell(Net(), nn.MSELoss())
cell = ck.AccumulationTrainCell(net, nn.Adam(net.trainable_params(), 0.02), accumulation_steps=2)
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(cell), 3, create_dataset())
os._exit(0)
