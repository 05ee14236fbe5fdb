# truth: differs
# class: attribute
# head: imports_ops
# The softmax temperature comes from a coroutine that is fed the loss with send(); its frame is not stored.


ms.set_seed(21)


def thermostat(start=2.0, target=1.2):
    """Yields a temperature, receives the loss."""
    t, integral = start, 0.0
    while True:
        loss = yield t
        integral = 0.9 * integral + (loss - target)
        t = min(4.0, max(0.5, t + 0.05 * integral))


class TemperedCE(nn.Cell):
    def __init__(self, body):
        super().__init__()
        self.body = body

    def construct(self, x, label, temperature):
        return ops.cross_entropy(self.body(x) / temperature, label)


gen = np.random.default_rng(9)
xs = gen.normal(size=(8, 6, 9)).astype(np.float32)
ls = gen.integers(0, 4, size=(8, 6)).astype(np.int32)
loader = [(ms.Tensor(a), ms.Tensor(b)) for a, b in zip(xs, ls)]

model = TemperedCE(nn.SequentialCell(nn.Dense(9, 12), nn.ReLU(), nn.Dense(12, 4)))
cell = ck.AccumulationTrainCell(model, nn.Momentum(model.trainable_params(), 0.1, 0.9), 2)
cell.set_train()

batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    control = thermostat()
    temperature = next(control)
    for x, label in batches:
        loss = cell(x, label, ms.Tensor(temperature, ms.float32))
        temperature = control.send(float(loss.asnumpy()))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
