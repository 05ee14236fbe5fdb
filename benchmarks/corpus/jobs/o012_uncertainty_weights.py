# truth: exact
# class: attribute
# head: imports_dataset_ops
# Two tasks with learned uncertainties (Kendall et al.): the weights of the losses are Parameters that the optimizer trains. GRAPH mode.


ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(3512)


class TwoTasks(nn.Cell):
    def __init__(self):
        super().__init__()
        self.trunk = nn.SequentialCell(nn.Dense(6, 12), nn.ReLU())
        self.depth, self.normal = nn.Dense(12, 1), nn.Dense(12, 3)

    def construct(self, x):
        hidden = self.trunk(x)
        return self.depth(hidden), self.normal(hidden)


class UncertaintyLoss(nn.Cell):
    def __init__(self, network):
        super().__init__(auto_prefix=False)
        self.network = network
        self.s = ms.Parameter(ms.Tensor(np.zeros(2), ms.float32), name="log_variance")

    def construct(self, x, depth, normal):
        out_depth, out_normal = self.network(x)
        first = ops.abs(out_depth - depth).mean()
        second = ((out_normal - normal) ** 2).mean()
        s = self.s
        return ops.exp(-s[0]) * first + ops.exp(-s[1]) * second + s.sum()


r = np.random.RandomState(12)
x = r.randn(60, 6).astype(np.float32)
depth = np.abs(x[:, :1] + x[:, 1:2]).astype(np.float32)
normal = (3 * x[:, 3:] + 0.5 * r.randn(60, 3)).astype(np.float32)
train = ds.NumpySlicesDataset((x, depth, normal), ["x", "depth", "normal"], shuffle=True).batch(6)
loss = UncertaintyLoss(TwoTasks())
optimizer = nn.AdamWeightDecay(loss.trainable_params(), learning_rate=0.02, weight_decay=0.001)

ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(nn.TrainOneStepCell(loss, optimizer)), 4, train, callbacks=[ms.train.LossMonitor(10)])
os._exit(0)
