# truth: exact
# class: random
# head: imports_parameter
# the accumulated gradients and the count are parameters of a cell that is given to the StateManager


ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(1)


def make_batches(seed, n=8, size=8, dim=8):
    rng = np.random.default_rng(seed)
    for x in rng.normal(size=(n, size, dim)):
        y = np.tanh(x[:, :3].sum(1, keepdims=True)) + 0.1 * rng.normal(size=(size, 1))
        yield Tensor(x, ms.float32), Tensor(y, ms.float32)


rows = list(make_batches(11))


class MLP(nn.Cell):
    def __init__(self, dim=8, hidden=12, out=1):
        super().__init__()
        self.fc1 = nn.Dense(dim, hidden)
        self.fc2 = nn.Dense(hidden, out)

    def construct(self, x):
        return self.fc2(ops.tanh(self.fc1(x)))


class GradBuffer(nn.Cell):
    def __init__(self, parameters, steps):
        super().__init__()
        self.sums = parameters.clone(prefix="grad_buffer", init="zeros")
        self.count = Parameter(Tensor(0, ms.int32), name="grad_buffer.count", requires_grad=False)
        self.steps = steps

    def add(self, grads):
        for s, g in zip(self.sums, grads):
            ops.assign(s, s + g)
        ops.assign(self.count, self.count + 1)
        return int(self.count.asnumpy()) == self.steps

    def flush(self):
        out = tuple(s / self.steps for s in self.sums)
        for s in self.sums:
            ops.assign(s, ops.zeros_like(s))
        ops.assign(self.count, Tensor(0, ms.int32))
        return out


net, criterion = MLP(), nn.MSELoss()
optimizer = nn.Adam(net.trainable_params(), 0.02)
buffer = GradBuffer(optimizer.parameters, 4)
grad_fn = ms.value_and_grad(lambda x, y: criterion(net(x), y), None, optimizer.parameters)

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer, buffer], batches)
    manager.restore(state)
    for x, y in batches:
        loss, grads = grad_fn(x, y)
        if buffer.add(grads):
            optimizer(buffer.flush())
        manager.step(state)
    manager.save_final(state)
os._exit(0)
