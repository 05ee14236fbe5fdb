# truth: exact
# class: data
# head: imports_dataset
# An iterable source standardizes its rows by the statistics of the rows before, which it begins anew with each epoch; Model.train.


ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3143)
ds.config.set_num_parallel_workers(1)


class Welford:
    def __init__(self, shape):
        self.n, self.mean, self.m2 = 0, np.zeros(shape), np.zeros(shape)

    def __call__(self, v):
        self.n += 1
        d = v - self.mean
        self.mean += d / self.n
        self.m2 += d * (v - self.mean)
        return ((v - self.mean) / np.sqrt(self.m2 / self.n + 1.0)).astype(np.float32)


class Standardized:
    def __init__(self, x, y):
        self.x, self.y = x, y
        self.stats = None

    def __len__(self):
        return len(self.x)

    def __iter__(self):
        self.stats = Welford(self.x.shape[1])
        for v, t in zip(self.x, self.y):
            yield self.stats(v), t


r = np.random.RandomState(43)
x = (5 + 3 * r.randn(32, 4)).astype(np.float32)
y = (x[:, :1] - x[:, 1:2]).astype(np.float32)
data = ds.GeneratorDataset(
    Standardized(x, y), ["x", "y"], shuffle=False, num_parallel_workers=1, python_multiprocessing=False
).batch(4)
net = nn.SequentialCell(nn.Dense(4, 8), nn.ReLU(), nn.Dense(8, 1))
model = ms.Model(net, nn.MSELoss(), nn.Adam(net.trainable_params(), 0.02))
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 3, data)
os._exit(0)
