# truth: exact
# class: attribute
# head: imports_dataset_ops
# "Free" adversarial training: the perturbation goes on from batch to batch and is a Parameter of the network, next to the weights. GRAPH mode.


ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(3515)
BATCH, WIDTH = 6, 8


class PerturbedLoss(nn.Cell):
    def __init__(self, network):
        super().__init__(auto_prefix=False)
        self.network = network
        self.delta = ms.Parameter(ms.Tensor(np.zeros((BATCH, WIDTH)), ms.float32), name="delta")
        self.loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")

    def construct(self, x, label):
        return self.loss(self.network(x + self.delta), label)


class FreeStep(nn.Cell):
    def __init__(self, network, optimizer, epsilon, step):
        super().__init__(auto_prefix=False)
        self.network, self.optimizer = network, optimizer
        self.epsilon, self.step = epsilon, step
        self.weights = optimizer.parameters
        self.delta = network.delta
        self.grad = ops.GradOperation(get_by_list=True)
        self.both = ms.ParameterTuple([*optimizer.parameters, network.delta])

    def construct(self, x, label):
        loss = self.network(x, label)
        grads = self.grad(self.network, self.both)(x, label)
        self.optimizer(grads[:-1])
        moved = self.delta + self.step * ops.sign(grads[-1])
        ops.assign(self.delta, ops.clamp(moved, -self.epsilon, self.epsilon))
        return loss


r = np.random.RandomState(15)
label = r.randint(0, 3, 60).astype(np.int32)
x = (r.randn(60, WIDTH) + 1.2 * np.eye(3, WIDTH)[label]).astype(np.float32)
train = ds.NumpySlicesDataset((x, label), ["x", "label"], shuffle=True).batch(BATCH, drop_remainder=True)
net = nn.SequentialCell(nn.Dense(WIDTH, 12), nn.ReLU(), nn.Dense(12, 3))
step = FreeStep(PerturbedLoss(net), nn.Momentum(net.trainable_params(), 0.03, 0.9), epsilon=0.3, step=0.05)

ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(step), 4, train)
os._exit(0)
