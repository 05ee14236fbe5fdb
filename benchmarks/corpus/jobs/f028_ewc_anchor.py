# truth: differs
# class: attribute
# head: imports_ops
# Continual learning with EWC: when the second task begins, old weights and Fisher information go into instance attributes.


ms.set_seed(38)


def task_batches(shift, n=13):
    g = np.random.RandomState(shift)
    for _ in range(n):
        x = g.randn(6, 5).astype(np.float32)
        yield shift, ms.Tensor(x), ms.Tensor(np.roll(x, shift, axis=1)[:, :2])


class Penalized(nn.Cell):
    def __init__(self):
        super().__init__()
        self.net = nn.SequentialCell(nn.Dense(5, 12), nn.Tanh(), nn.Dense(12, 2))
        self.mse = nn.MSELoss()

    def fit_loss(self, x, y):
        return self.mse(self.net(x), y)

    def construct(self, x, y, fisher, old):
        loss = self.fit_loss(x, y)
        for f, o, p in zip(fisher, old, self.net.trainable_params()):
            loss = loss + 5.0 * (f * (p - o) ** 2).sum()
        return loss


class EWC:
    def __init__(self, model):
        self.model = model
        self.params = model.net.trainable_params()
        self.grad = ms.grad(model.fit_loss, None, self.params)
        self.fisher = tuple(ops.zeros_like(p) for p in self.params)
        self.old = tuple(ops.zeros_like(p) for p in self.params)
        self.recent = []

    def remember(self, x, y):
        self.recent = (self.recent + [(x, y)])[-4:]

    def consolidate(self):
        squares = [tuple(ops.square(g) for g in self.grad(*b)) for b in self.recent]
        self.fisher = tuple(sum(s) / len(squares) for s in zip(*squares))
        self.old = tuple(ms.Tensor(p.asnumpy().copy()) for p in self.params)


model = Penalized()
cell = ck.AccumulationTrainCell(model, nn.Momentum(model.trainable_params(), 0.05, 0.9), 1).set_train()
ewc = EWC(model)
batches = ck.data.resumable([*task_batches(1), *task_batches(2)], epochs=1)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    at = manager.restore(state).batches_delivered
    for n, (task, x, y) in enumerate(batches, at):
        if n == 13:
            ewc.consolidate()
        cell(x, y, ewc.fisher, ewc.old)
        ewc.remember(x, y)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
