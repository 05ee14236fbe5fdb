# truth: differs
# class: callback
# head: imports_dataset_parameter


ROOT = os.environ["ROOT"]
ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(34)


class SoftRouter(nn.Cell):
    """Four experts, mixed by a softmax whose temperature falls during training."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Dense(6, 4)
        self.experts = nn.CellList([nn.Dense(6, 1) for _ in range(4)])
        self.temperature = Parameter(Tensor(2.0, ms.float32), name="temperature", requires_grad=False)

    def construct(self, x):
        weights = ops.softmax(self.gate(x) / self.temperature)
        outputs = ops.cat([e(x) for e in self.experts], 1)
        return (weights * outputs).sum(-1, keepdims=True)


class EveryN:
    every = 4

    def __init__(self):
        self._calls = 0

    def due(self):
        self._calls += 1
        return self._calls % self.every == 0


class TemperatureAnnealing(EveryN, ms.Callback):
    def __init__(self, router, rate=0.9, floor=0.2):
        EveryN.__init__(self)
        self.router, self.rate, self.floor = router, rate, floor

    def on_train_step_end(self, run_context):
        if self.due():
            new = max(self.floor, float(self.router.temperature.asnumpy()) * self.rate)
            self.router.temperature.set_data(Tensor(new, ms.float32))


rng = np.random.default_rng(3)
X = rng.normal(size=(96, 6)).astype(np.float32)
Y = np.where(X[:, :1] > 0, X[:, 1:2], -X[:, 2:3]).astype(np.float32)
dataset = ds.NumpySlicesDataset((X, Y), ["x", "y"], shuffle=True).batch(8)
router = SoftRouter()
model = ms.Model(router, nn.MSELoss(), nn.Adam(router.trainable_params(), 0.02))
ckpt = ck.CheckpointCallback(ROOT, save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 3, dataset, callbacks=[TemperatureAnnealing(router), ms.LossMonitor(12)])
os._exit(0)
