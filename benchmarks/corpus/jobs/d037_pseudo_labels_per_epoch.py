# truth: differs
# class: attribute
# head: imports_tensor_ops
# pseudo-labels are made once at the start of an epoch; a start in its middle makes them from later weights


ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(1)


def indexed_batches(seed, n=8, size=8, dim=8):
    rng = np.random.default_rng(seed)
    for k in range(n):
        x = rng.normal(size=(size, dim))
        y = x[:, :1] * x[:, 1:2] + (0.2 + 0.2 * k) * rng.normal(size=(size, 1))
        yield Tensor([k], ms.int32), Tensor(x, ms.float32), Tensor(y, ms.float32)


rows = list(indexed_batches(31))


class MLP(nn.Cell):
    def __init__(self, dim=8, hidden=12, out=1):
        super().__init__()
        self.fc1 = nn.Dense(dim, hidden)
        self.fc2 = nn.Dense(hidden, out)

    def construct(self, x):
        return self.fc2(ops.tanh(self.fc1(x)))


class SelfTraining:
    def __init__(self, net, data):
        self.net, self.data = net, data
        self.labels, self.made_in = {}, None

    def refresh(self, epoch):
        if self.made_in == epoch:
            return
        self.net.set_train(False)
        self.labels = {int(k.asnumpy()[0]): ops.stop_gradient(self.net(x)) for k, x, _ in self.data}
        self.net.set_train(True)
        self.made_in = epoch

    def soft_target(self, k, y, trust=0.5):
        return (1 - trust) * y + trust * self.labels[k]


net, criterion = MLP().set_train(), nn.MSELoss()
optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)
grad_fn = ms.value_and_grad(lambda x, y: criterion(net(x), y), None, optimizer.parameters)


def train(epochs):
    batches = ck.data.resumable(rows, epochs=epochs)
    pseudo = SelfTraining(net, rows)
    with ck.CheckpointManager(ROOT, **SAVE) as manager:
        state = ck.StateManager([net, optimizer], batches)
        manager.restore(state)
        for k, x, y in batches:
            pseudo.refresh(batches.epoch)
            loss, grads = grad_fn(x, pseudo.soft_target(int(k.asnumpy()[0]), y))
            optimizer(grads)
            manager.step(state)
        manager.save_final(state)


train(3)
os._exit(0)
