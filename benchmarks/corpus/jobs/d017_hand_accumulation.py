# truth: differs
# class: iterator
# head: regression_8_make_batches
# gradients are summed by hand in a plain list over 4 micro-batches; the sum and the counter are lost in mid-cycle



class MLP(nn.Cell):
    def __init__(self, dim=8, hidden=12, out=1):
        super().__init__()
        self.fc1 = nn.Dense(dim, hidden)
        self.fc2 = nn.Dense(hidden, out)

    def construct(self, x):
        return self.fc2(ops.tanh(self.fc1(x)))


class Accumulator:
    def __init__(self, optimizer, steps):
        self.optimizer, self.steps = optimizer, steps
        self.zero()

    def zero(self):
        self.grads, self.filled = None, 0

    def __call__(self, grads):
        if self.grads is None:
            self.grads = list(grads)
        else:
            self.grads = [a + g for a, g in zip(self.grads, grads)]
        self.filled += 1
        if self.filled == self.steps:
            self.optimizer(tuple(a / self.steps for a in self.grads))
            self.zero()


net, criterion = MLP(), nn.MSELoss()
optimizer = nn.Adam(net.trainable_params(), 0.02)
apply = Accumulator(optimizer, 4)
grad_fn = ms.value_and_grad(lambda x, y: criterion(net(x), y), None, optimizer.parameters)

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    manager.restore(state)
    for x, y in batches:
        loss, grads = grad_fn(x, y)
        apply(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
