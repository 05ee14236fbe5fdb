# truth: exact
# class: attribute
# head: imports_dataset_ops
# A train cell with gradient accumulation of its own (K = 3), as in MindSpore's tutorial: the sums and the counter are Parameters. GRAPH mode.


ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(3501)


class AccumulatingStep(nn.TrainOneStepCell):
    def __init__(self, network, optimizer, steps):
        super().__init__(network, optimizer)
        self.steps = steps
        self.sums = optimizer.parameters.clone(prefix="sum", init="zeros")
        self.zeros = optimizer.parameters.clone(prefix="zero", init="zeros")
        self.count = ms.Parameter(ms.Tensor(0, ms.int32), name="count", requires_grad=False)
        self.one = ms.Tensor(1, ms.int32)
        self.map = ops.HyperMap()

    def construct(self, x, y):
        loss = self.network(x, y)
        grads = self.grad_no_sens(self.network, self.weights)(x, y)
        self.map(ops.partial(ops.assign_add), self.sums, grads)
        ops.assign_add(self.count, self.one)
        if self.count % self.steps == 0:
            self.optimizer(self.sums)
            self.map(ops.partial(ops.assign), self.sums, self.zeros)
        return loss


r = np.random.RandomState(1)
x = r.randn(60, 6).astype(np.float32)
y = (np.sin(x[:, :1]) + x[:, 1:2] * x[:, 2:3]).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(6)
net = nn.SequentialCell(nn.Dense(6, 12), nn.Tanh(), nn.Dense(12, 1))
optimizer = nn.Momentum(net.trainable_params(), 0.02, 0.9)
step = AccumulatingStep(nn.WithLossCell(net, nn.MSELoss()), optimizer, 3)

ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(step), 4, train)
os._exit(0)
