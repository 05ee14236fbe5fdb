# truth: exact, may be named
# class: attribute
# head: imports_parameter
# The temperature is a property: computed from a stored count of steps and kept, with that count, until the count has moved on.


ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3124)


class TemperedLoss(nn.Cell):
    def __init__(self, network):
        super().__init__()
        self.network = network
        self.ticks = Parameter(Tensor(0, ms.int32), name="ticks", requires_grad=False)
        self._kept = (None, None)

    @property
    def temperature(self):
        now = int(self.ticks.asnumpy())
        if self._kept[0] != now:
            self._kept = (now, 0.5 + 2.0 / (1 + 0.3 * now))
        return self._kept[1]

    def construct(self, x, y):
        p = ops.softmax(self.network(x) / self.temperature, -1)
        ops.assign_add(self.ticks, Tensor(1, ms.int32))
        return ((p - y) ** 2).mean()


r = np.random.RandomState(24)
proto = r.randn(3, 5)
rows = []
for _ in range(8):
    label = r.randint(0, 3, 8)
    x = (proto[label] + 0.7 * r.randn(8, 5)).astype(np.float32)
    rows.append((Tensor(x), Tensor(np.eye(3, dtype=np.float32)[label])))

loss = TemperedLoss(nn.SequentialCell(nn.Dense(5, 8), nn.ReLU(), nn.Dense(8, 3)))
cell = nn.TrainOneStepCell(loss, nn.Momentum(loss.trainable_params(), 0.3, 0.9)).set_train()

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for batch in batches:
        cell(*batch)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
