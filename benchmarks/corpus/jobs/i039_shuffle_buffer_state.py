# truth: differs
# class: data
# head: imports
# A streaming loader with a shuffle buffer; its state_dict has epoch, read position and generator, but not the samples that lie in the buffer.


ms.set_seed(339)


class ShuffledStream:
    def __init__(self, samples, batch_size, buffer_size, seed):
        self.samples, self.batch_size, self.buffer_size = samples, batch_size, buffer_size
        self.rng = np.random.RandomState(seed)
        self.buffer = []
        self.read = 0
        self.epoch = 0

    def _fill(self):
        while len(self.buffer) < self.buffer_size and self.read < len(self.samples):
            self.buffer.append(self.samples[self.read])
            self.read += 1

    def __iter__(self):
        self._fill()
        while self.buffer:
            batch = []
            for _ in range(min(self.batch_size, len(self.buffer))):
                batch.append(self.buffer.pop(self.rng.randint(len(self.buffer))))
                self._fill()
            yield tuple(np.stack(column) for column in zip(*batch))
        self.read = 0
        self.epoch += 1

    def state_dict(self):
        _, keys, pos, has_gauss, cached = self.rng.get_state()
        return {
            "epoch": self.epoch,
            "read": self.read,
            "keys": keys.copy(),
            "pos": pos,
            "gauss": has_gauss,
            "cached": cached,
        }

    def load_state_dict(self, state):
        self.epoch, self.read = state["epoch"], state["read"]
        self.rng.set_state(("MT19937", state["keys"], state["pos"], state["gauss"], state["cached"]))


r = np.random.RandomState(39)
samples = []
for _ in range(32):
    x = r.randn(4).astype(np.float32)
    samples.append((x, np.array([x.sum()], np.float32)))

net = nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 1))
mse = nn.MSELoss()
opt = nn.Momentum(net.trainable_params(), 0.05, 0.9)
vg = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())
batches = ck.data.resumable(ShuffledStream(samples, 4, 12, seed=5), epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x, y in batches:
        loss, grads = vg(ms.Tensor(x), ms.Tensor(y))
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
