# truth: differs
# class: attribute
# head: imports_dataset
# Dynamic weight average: how fast each task's loss falls decides its weight; the cell keeps the losses of the last periods in lists.


ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3513)


class Tasks(nn.Cell):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Dense(5, 10, activation="tanh")
        self.heads = nn.CellList([nn.Dense(10, 1) for _ in range(3)])

    def construct(self, x, y, weights):
        hidden = self.trunk(x)
        losses = [((head(hidden) - y[:, i : i + 1]) ** 2).mean() for i, head in enumerate(self.heads)]
        return sum(w * loss for w, loss in zip(weights, losses)), losses


class DwaStep(nn.Cell):
    def __init__(self, network, optimizer, period=4, temperature=0.5):
        super().__init__(auto_prefix=False)
        self.network, self.optimizer = network, optimizer
        self.period, self.temperature = period, temperature
        self.gradients = ms.value_and_grad(network, None, optimizer.parameters, has_aux=True)
        self.current, self.periods = [], []

    def weights(self):
        if len(self.periods) < 2:
            return [1.0, 1.0, 1.0]
        speed = np.exp(self.periods[-1] / self.periods[-2] / self.temperature)
        return [float(w) for w in 3 * speed / speed.sum()]

    def construct(self, x, y):
        (loss, losses), grads = self.gradients(x, y, self.weights())
        self.optimizer(grads)
        self.current.append([float(v.asnumpy()) for v in losses])
        if len(self.current) == self.period:
            self.periods = [*self.periods[-1:], np.mean(self.current, 0)]
            self.current = []
        return loss


r = np.random.RandomState(13)
x = r.randn(54, 5).astype(np.float32)
y = np.stack([x[:, 0], 3 * x[:, 1] * x[:, 2], np.sin(4 * x[:, 3])], 1).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(6)
network = Tasks()
step = DwaStep(network, nn.Adam(network.trainable_params(), 0.02))

ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(step), 4, train)
os._exit(0)
