# truth: differs
# class: attribute
# head: saving_tensor
# the weight of the second task comes from running losses in a plain object and enters the graph as a tensor

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(1)


def make_batches(seed, n=8, size=8, dim=8):
    rng = np.random.default_rng(seed)
    for x in rng.normal(size=(n, size, dim)):
        y = np.tanh(x[:, :3].sum(1, keepdims=True)) + 0.1 * rng.normal(size=(size, 1))
        yield Tensor(x, ms.float32), Tensor(y, ms.float32)


rows = list(make_batches(11))


class TwoTasks(nn.Cell):
    def __init__(self):
        super().__init__()
        self.trunk = nn.SequentialCell(nn.Dense(8, 12), nn.Tanh())
        self.regress, self.rebuild = nn.Dense(12, 1), nn.Dense(12, 8)

    def construct(self, x, y, weight):
        z = self.trunk(x)
        return ((self.regress(z) - y) ** 2).mean() + weight * ((self.rebuild(z) - x) ** 2).mean()


class PIDWeight:
    """A PI controller that keeps the loss near a falling set point."""

    def __init__(self, kp=0.3, ki=0.05):
        self.kp, self.ki = kp, ki
        self.integral, self.set_point = 0.0, None

    def update(self, loss):
        self.set_point = loss if self.set_point is None else 0.95 * self.set_point
        error = loss - self.set_point
        self.integral += error
        return self

    @property
    def output(self):
        return 0.2 + abs(self.ki * self.integral) + (self.kp * self.set_point if self.set_point else 0.0)


network = TwoTasks()
cell = ck.AccumulationTrainCell(network, nn.Adam(network.trainable_params(), 0.01), 2, clip_norm=2.0).set_train()
pid = PIDWeight()
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for x, y in batches:
        loss = cell(x, y, Tensor(pid.output, ms.float32))
        pid.update(float(loss.asnumpy()))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
