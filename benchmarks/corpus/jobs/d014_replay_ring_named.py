# truth: exact
# class: random
# head: saving_tensor
# the ring buffer's arrays and position, and the generator that samples from it, are given by name

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(1)


def make_batches(seed, n=8, size=8, dim=8):
    rng = np.random.default_rng(seed)
    for x in rng.normal(size=(n, size, dim)):
        y = np.tanh(x[:, :3].sum(1, keepdims=True)) + 0.1 * rng.normal(size=(size, 1))
        yield Tensor(x, ms.float32), Tensor(y, ms.float32)


rows = list(make_batches(11))
net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
loss_fn = nn.MSELoss()
optimizer = nn.Adam(net.trainable_params(), 0.01)
grad_fn = ms.value_and_grad(lambda x, y, w: loss_fn(net(x), y) * w, None, optimizer.parameters)


def train_step(x, y, w=1.0):
    loss, grads = grad_fn(x, y, w)
    optimizer(grads)
    return loss


class RingBuffer:
    def __init__(self, capacity, dim):
        self.obs = np.zeros((capacity, dim), np.float32)
        self.target = np.zeros((capacity, 1), np.float32)
        self.pos, self.size, self.capacity = 0, 0, capacity

    def add(self, obs, target):
        for o, t in zip(obs, target):
            self.obs[self.pos], self.target[self.pos] = o, t
            self.pos = (self.pos + 1) % self.capacity
            self.size = min(self.size + 1, self.capacity)

    def sample(self, rng, n):
        index = rng.integers(0, self.size, n)
        return Tensor(self.obs[index]), Tensor(self.target[index])


buffer, rng = RingBuffer(40, 8), np.random.default_rng(17)
stored = ck.attributes(buffer, "obs", "target", "pos", "size")
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches, buffer=stored, sampling=rng)
    manager.restore(state)
    for x, y in batches:
        buffer.add(x.asnumpy(), y.asnumpy())
        train_step(x, y)
        train_step(*buffer.sample(rng, 8), 0.5)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
