# truth: differs
# class: attribute
# head: regression_8_make_batches
# a controller keeps the running gradient norm and sets the learning rate by it after each update



class MLP(nn.Cell):
    def __init__(self, dim=8, hidden=12, out=1):
        super().__init__()
        self.fc1 = nn.Dense(dim, hidden)
        self.fc2 = nn.Dense(hidden, out)

    def construct(self, x):
        return self.fc2(ops.tanh(self.fc1(x)))


class NormController:
    """More rate where the gradients are small compared with what they were."""

    def __init__(self, optimizer, base, beta=0.8):
        self.optimizer, self.base, self.beta = optimizer, base, beta
        self._norm = None

    def __call__(self, norm):
        self._norm = norm if self._norm is None else self.beta * self._norm + (1 - self.beta) * norm
        rate = self.base * min(3.0, self._norm / (norm + 1e-6))
        ops.assign(self.optimizer.learning_rate, Tensor(rate, ms.float32))


network = nn.WithLossCell(MLP(), nn.MSELoss())
optimizer = nn.Momentum(network.trainable_params(), 0.03, 0.9)
cell = ck.AccumulationTrainCell(network, optimizer, 2, clip_norm=50.0).set_train()
controller = NormController(optimizer, 0.03)


def micro_step(manager, x, y):
    loss = cell(x, y)
    if cell.updated:
        norm = float(cell.gradient_norm.asnumpy())
        manager.fence()
        controller(norm)
    return loss


batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for x, y in batches:
        micro_step(manager, x, y)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
