# truth: exact
# class: attribute
# head: imports_dataset_parameter


ROOT = os.environ["ROOT"]
ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(36)


class TrainAccumulate(nn.TrainOneStepCell):
    def __init__(self, network, optimizer, steps, sens=1.0):
        super().__init__(network, optimizer, sens)
        self.steps = Tensor(steps, ms.int32)
        self.inner = self.weights.clone(prefix="accum", init="zeros")
        self.counter = Parameter(Tensor(0, ms.int32), name="accum_counter", requires_grad=False)
        self.map = ops.HyperMap()
        self.scale = 1.0 / steps

    def construct(self, *inputs):
        loss = self.network(*inputs)
        sens = ops.fill(loss.dtype, loss.shape, self.sens)
        grads = self.grad(self.network, self.weights)(*inputs, sens)
        for i in range(len(self.inner)):
            ops.assign_add(self.inner[i], grads[i] * self.scale)
        ops.assign_add(self.counter, Tensor(1, ms.int32))
        if self.counter % self.steps == 0:
            self.optimizer(self.inner)
            for i in range(len(self.inner)):
                ops.assign(self.inner[i], ops.zeros_like(self.inner[i]))
        return loss


rng = np.random.default_rng(3)
X = rng.normal(size=(96, 6)).astype(np.float32)
Y = (X[:, :1] + X[:, 1:2] ** 2).astype(np.float32)
dataset = ds.NumpySlicesDataset((X, Y), ["x", "y"], shuffle=True).batch(8)
net = nn.WithLossCell(nn.SequentialCell(nn.Dense(6, 12), nn.ReLU(), nn.Dense(12, 1)), nn.MSELoss())
optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)
cell = TrainAccumulate(net, optimizer, 4)
cell.set_train()
ckpt = ck.CheckpointCallback(ROOT, save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(cell), 3, dataset, callbacks=[ms.LossMonitor(12)])
os._exit(0)
