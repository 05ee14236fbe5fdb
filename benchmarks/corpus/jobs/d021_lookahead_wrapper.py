# truth: differs
# class: attribute
# head: regression_8_make_batches
# the Lookahead wrapper of the optimizer has its slow weights and its counter in plain attributes



class MLP(nn.Cell):
    def __init__(self, dim=8, hidden=12, out=1):
        super().__init__()
        self.fc1 = nn.Dense(dim, hidden)
        self.fc2 = nn.Dense(hidden, out)

    def construct(self, x):
        return self.fc2(ops.tanh(self.fc1(x)))


class Lookahead:
    """k steps forward, one step back; everything else is the wrapped optimizer's."""

    def __init__(self, optimizer, k=4, alpha=0.5):
        self.optimizer, self.k, self.alpha = optimizer, k, alpha
        self._counter = 0
        self._slow = [p.value().copy() for p in optimizer.parameters]

    def __getattr__(self, name):
        return getattr(self.__dict__["optimizer"], name)

    def __call__(self, grads):
        self.optimizer(grads)
        self._counter += 1
        if self._counter % self.k:
            return
        for i, p in enumerate(self.optimizer.parameters):
            self._slow[i] = self._slow[i] + self.alpha * (p.value() - self._slow[i])
            ops.assign(p, self._slow[i].copy())


def train(net, optimizer, rows, epochs):
    criterion = nn.MSELoss()
    grad_fn = ms.value_and_grad(lambda x, y: criterion(net(x), y), None, optimizer.parameters)
    batches = ck.data.resumable(rows, epochs=epochs)
    with ck.CheckpointManager(ROOT, **SAVE) as manager:
        state = ck.StateManager([net, optimizer.optimizer], batches)
        manager.restore(state)
        for x, y in batches:
            loss, grads = grad_fn(x, y)
            optimizer(grads)
            manager.step(state)
        manager.save_final(state)


net = MLP()
train(net, Lookahead(nn.Adam(net.trainable_params(), 0.02)), rows, 3)
os._exit(0)
