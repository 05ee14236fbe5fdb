# truth: exact
# class: attribute
# head: pynative_dataset_ops
# Training against one universal perturbation that climbs a little with every batch.

ms.set_seed(145)


class UniversalAdversarialStep(nn.Cell):
    def __init__(self, network, optimizer, width, radius=0.5, climb=0.1):
        super().__init__()
        self.network, self.optimizer = network, optimizer
        self.radius, self.climb = radius, climb
        self.delta = ms.Parameter(ms.ops.zeros((1, width)), name="delta", requires_grad=False)
        self.ce = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
        self.grad_fn = ms.value_and_grad(self.forward, 2, optimizer.parameters)

    def forward(self, x, label, delta):
        return self.ce(self.network(x + delta), label)

    def construct(self, x, label):
        loss, (climb, grads) = self.grad_fn(x, label, self.delta.value())
        self.optimizer(grads)
        moved = self.delta + self.climb * ops.sign(climb)
        ops.assign(self.delta, ops.clip_by_value(moved, ms.Tensor(-self.radius), ms.Tensor(self.radius)))
        return loss


r = np.random.RandomState(47)
labels = r.randint(0, 4, 64).astype(np.int32)
x = (r.randn(64, 8) + 1.5 * np.eye(4)[labels].repeat(2, 1)).astype(np.float32)
train = ds.NumpySlicesDataset((x, labels), ["x", "label"], shuffle=True).batch(8)
net = nn.SequentialCell(nn.Dense(8, 16), nn.ReLU(), nn.Dense(16, 4))
step = UniversalAdversarialStep(net, nn.Adam(net.trainable_params(), 5e-3), 8)

ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(step), 5, train)
os._exit(0)
