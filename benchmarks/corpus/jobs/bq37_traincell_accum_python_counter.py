# truth: differs
# class: attribute
# head: imports_dataset_parameter


ROOT = os.environ["ROOT"]
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(37)


class Accumulator:
    def __init__(self, optimizer, steps):
        self.optimizer, self.steps = optimizer, steps
        self.grads = optimizer.parameters.clone(prefix="accum_", init="zeros")
        self.micro = 0

    def add(self, grads):
        for a, g in zip(self.grads, grads):
            ops.assign_add(a, g / self.steps)
        self.micro = (self.micro + 1) % self.steps
        if self.micro == 0:
            self.apply()

    def apply(self):
        self.optimizer(self.grads)
        for a in self.grads:
            ops.assign(a, ops.zeros_like(a))


class TrainCell(nn.TrainOneStepCell):
    def __init__(self, network, optimizer, steps):
        super().__init__(network, optimizer)
        self.accumulator = Accumulator(optimizer, steps)
        self.sums = self.accumulator.grads

    def construct(self, x, y):
        loss, grads = ops.value_and_grad(self.network, None, self.weights)(x, y)
        self.accumulator.add(grads)
        return loss


rng = np.random.default_rng(3)
X = rng.normal(size=(96, 6)).astype(np.float32)
Y = (X[:, :1] + X[:, 1:2] ** 2).astype(np.float32)
dataset = ds.NumpySlicesDataset((X, Y), ["x", "y"], shuffle=True).batch(8)
net = nn.WithLossCell(nn.SequentialCell(nn.Dense(6, 12), nn.ReLU(), nn.Dense(12, 1)), nn.MSELoss())
cell = TrainCell(net, nn.Momentum(net.trainable_params(), 0.05, 0.9), 4)
cell.set_train()
ckpt = ck.CheckpointCallback(ROOT, save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(cell), 3, dataset, callbacks=[ms.LossMonitor(12)])
os._exit(0)
