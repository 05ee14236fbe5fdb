# truth: exact
# class: data
# head: imports_dataset
# A sampler of one's own draws as many rows of each class, by a generator that it makes anew in __iter__; a shuffle of MindSpore follows. The pipeline is replayed. GRAPH mode.


ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(3552)


class BalancedSampler(ds.Sampler):
    def __init__(self, labels, per_class, seed):
        self.rows_of = [np.flatnonzero(labels == c) for c in range(labels.max() + 1)]
        self.per_class, self.seed = per_class, seed
        super().__init__()

    def __iter__(self):
        rng = np.random.default_rng(self.seed)
        chosen = [rng.choice(rows, self.per_class, replace=len(rows) < self.per_class) for rows in self.rows_of]
        for number in np.stack(chosen, 1).ravel():
            yield int(number)

    def __len__(self):
        return self.per_class * len(self.rows_of)


class Rows:
    def __init__(self, x, label):
        self.x, self.label = x, label

    def __getitem__(self, number):
        return self.x[number], self.label[number]

    def __len__(self):
        return len(self.x)


r = np.random.RandomState(52)
label = r.choice(3, 90, p=[0.7, 0.2, 0.1]).astype(np.int32)
x = (r.randn(90, 6) + 1.5 * np.eye(3, 6)[label]).astype(np.float32)
train = ds.GeneratorDataset(
    Rows(x, label), ["x", "label"], sampler=BalancedSampler(label, 20, seed=52), num_parallel_workers=1
)
train = train.shuffle(30).batch(6)
net = nn.SequentialCell(nn.Dense(6, 12), nn.ReLU(), nn.Dense(12, 3))
loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
model = ms.Model(net, loss, nn.Momentum(net.trainable_params(), 0.05, 0.9))

ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 4, train, callbacks=[ms.train.LossMonitor(10)])
os._exit(0)
