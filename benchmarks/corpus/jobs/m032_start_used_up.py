# truth: exact
# class: data
# head: pynative
# A loader begins its next iteration where load_state_dict told it and uses that number up at once, so that the epochs after it are whole again.

ms.set_seed(4332)


class Loader:
    """batches of an epoch, in an order that follows from seed and epoch"""

    def __init__(self, x, y, size, seed):
        self._data = x, y
        self._size, self._seed = size, seed
        self._epoch, self._position = -1, 0
        self._begin_at = None
        self._order_of = (-1, None)  # the order of one epoch is kept, it follows from seed and epoch

    def _order(self, epoch):
        if self._order_of[0] != epoch:
            rng = np.random.default_rng([self._seed, epoch])
            self._order_of = epoch, rng.permutation(len(self._data[0])).reshape(-1, self._size)
        return self._order_of[1]

    def __len__(self):
        return len(self._data[0]) // self._size

    def __iter__(self):
        begin, self._begin_at = self._begin_at, None
        if begin is None or begin == len(self):
            self._epoch, begin = self._epoch + 1, 0
        for position in range(begin, len(self)):
            self._position = position + 1
            rows = self._order(self._epoch)[position]
            yield tuple(column[rows] for column in self._data)

    def state_dict(self):
        return {"epoch": self._epoch, "position": self._position}

    def load_state_dict(self, state):
        self._epoch, self._position = state["epoch"], state["position"]
        self._begin_at = None if self._epoch < 0 else self._position


r = np.random.RandomState(32)
x = r.randn(40, 4).astype(np.float32)
y = np.sin(2 * x[:, :1] - x[:, 1:2]).astype(np.float32)
net = nn.SequentialCell(nn.Dense(4, 10), nn.Tanh(), nn.Dense(10, 1))
mse = nn.MSELoss()
opt = nn.Adam(net.trainable_params(), 0.02)
gradients = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())

batches = ck.data.resumable(Loader(x, y, 5, seed=432), epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for a, b in batches:
        loss, grads = gradients(ms.Tensor(a), ms.Tensor(b))
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
