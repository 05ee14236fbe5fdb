# truth: exact
# class: random
# head: saving_tensor
# the memory bank of features has state_dict and load_state_dict and is given by name

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(1)


def indexed_batches(seed, n=8, size=8, dim=8):
    rng = np.random.default_rng(seed)
    for k in range(n):
        x = rng.normal(size=(size, dim))
        y = x[:, :1] * x[:, 1:2] + (0.2 + 0.2 * k) * rng.normal(size=(size, 1))
        yield Tensor([k], ms.int32), Tensor(x, ms.float32), Tensor(y, ms.float32)


rows = list(indexed_batches(31))


class MemoryBank:
    """One feature vector per batch, smoothed over epochs."""

    def __init__(self, n, dim, momentum=0.5):
        self.features = np.zeros((n, dim), np.float32)
        self.seen = np.zeros(n, np.int64)
        self.momentum = momentum

    def __getitem__(self, index):
        return Tensor(self.features[index].copy())

    def push(self, index, feature):
        m = self.momentum if self.seen[index] else 0.0
        self.features[index] = m * self.features[index] + (1 - m) * feature
        self.seen[index] += 1

    def state_dict(self):
        return {"features": self.features.copy(), "seen": self.seen.copy()}

    def load_state_dict(self, state):
        self.features[...] = state["features"]
        self.seen[...] = state["seen"]


body, head = nn.SequentialCell(nn.Dense(8, 6), nn.Tanh()), nn.Dense(6, 1)
net = nn.SequentialCell(body, head)
optimizer = nn.Adam(net.trainable_params(), 0.01)


def forward_fn(x, y, remembered):
    z = body(x)
    return ((head(z) - y) ** 2).mean() + 0.3 * ((z.mean(0) - remembered) ** 2).sum()


grad_fn = ms.value_and_grad(forward_fn, None, optimizer.parameters)
bank = MemoryBank(len(rows), 6)
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches, bank=bank)
    manager.restore(state)
    for index, x, y in batches:
        k = int(index.asnumpy()[0])
        loss, grads = grad_fn(x, y, bank[k])
        optimizer(grads)
        bank.push(k, body(x).asnumpy().mean(axis=0))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
