# truth: differs
# class: random
# head: pynative_dataset_ops
# Stochastic depth: a network whose blocks are skipped at random, by Model.fit.

ms.set_seed(156)


class DropPath(nn.Cell):
    def __init__(self, drop, rng):
        super().__init__()
        self.drop, self.rng = drop, rng

    def construct(self, x):
        if not self.training or self.drop == 0.0:
            return x
        keep = self.rng.uniform(size=(x.shape[0], 1)) >= self.drop
        return x * ms.Tensor((keep / (1 - self.drop)).astype(np.float32))


class Block(nn.Cell):
    def __init__(self, width, drop, rng):
        super().__init__()
        self.dense, self.path = nn.Dense(width, width), DropPath(drop, rng)

    def construct(self, x):
        return x + self.path(ops.tanh(self.dense(x)))


def network(inputs, width, classes, depth, drop, seed):
    rng = np.random.RandomState(seed)
    blocks = [Block(width, drop * (i + 1) / depth, rng) for i in range(depth)]
    return nn.SequentialCell(nn.Dense(inputs, width), *blocks, nn.Dense(width, classes))


r = np.random.RandomState(57)
labels = r.randint(0, 3, 90).astype(np.int32)
x = (r.randn(90, 6) + np.eye(3)[labels].repeat(2, 1)).astype(np.float32)
train = ds.NumpySlicesDataset((x[:60], labels[:60]), ["x", "label"], shuffle=True).batch(6)
valid = ds.NumpySlicesDataset((x[60:], labels[60:]), ["x", "label"], shuffle=False).batch(15)
net = network(6, 12, 3, 3, 0.4, seed=57)
loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
model = ms.Model(net, loss, nn.Momentum(net.trainable_params(), 0.05, 0.9), metrics={"accuracy"})

ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.fit(model, 4, train, valid)
os._exit(0)
