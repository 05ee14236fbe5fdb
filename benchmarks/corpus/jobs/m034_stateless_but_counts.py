# truth: differs
# class: data
# head: imports_dataset
# The map of a pipeline is declared stateless, but it begins to distort rows after the first 90 that it has seen, by a count of its own; GRAPH mode.


ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(4334)


class Quantize:
    """coarser inputs, after a warm-up in which the network sees them as they are"""

    def __init__(self, levels, warm_up_rows):
        self.levels, self.warm_up_rows = levels, warm_up_rows
        self.rows = 0

    def __call__(self, row):
        self.rows += 1
        if self.rows <= self.warm_up_rows:
            return row
        return (np.round(row * self.levels) / self.levels).astype(np.float32)


r = np.random.RandomState(34)
x = r.randn(48, 5).astype(np.float32)
y = (x[:, :1] * x[:, 1:2] + x[:, 2:3]).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=False)
train = train.map(Quantize(2, 90), input_columns=["x"], num_parallel_workers=1).batch(6)
net = nn.SequentialCell(nn.Dense(5, 8), nn.Tanh(), nn.Dense(8, 1))
model = ms.Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.05, 0.9))
ckpt = ck.CheckpointCallback(
    os.environ["ROOT"],
    save=ck.SaveEvery(micro_steps=5),
    saving=ck.Saving(when_busy="wait"),
    training=ck.Training(augmentation="stateless"),
)
ckpt.train(model, 3, train)
os._exit(0)
