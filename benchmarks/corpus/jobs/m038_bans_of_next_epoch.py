# truth: differs
# class: data
# head: pynative
# The loop flags bad rows, which the loader bans from the next epoch on; its state_dict has epoch, place and banned rows, but not those that wait to be banned.

ms.set_seed(4338)


class CleaningLoader:
    def __init__(self, x, y, size):
        self.x, self.y, self.size = x, y, size
        self.epoch, self.at = 0, 0
        self.banned, self.flagged = set(), set()

    def __len__(self):
        return len(self.x) // self.size

    def flag(self, row):
        self.flagged.add(int(row))

    def __iter__(self):
        if self.at == len(self):
            self.epoch, self.at = self.epoch + 1, 0
            self.banned |= self.flagged
            self.flagged = set()
        good = [row for row in range(len(self.x)) if row not in self.banned]
        order = np.random.default_rng(self.epoch).choice(
            good, len(self.x)
        )  # with replacement: epochs keep their length
        while self.at < len(self):
            rows = order[self.at * self.size : (self.at + 1) * self.size]
            self.at += 1
            yield rows, self.x[rows], self.y[rows]

    def state_dict(self):
        return {"epoch": self.epoch, "at": self.at, "banned": sorted(self.banned)}

    def load_state_dict(self, state):
        self.epoch, self.at, self.banned = state["epoch"], state["at"], set(state["banned"])


r = np.random.RandomState(38)
x = r.randn(48, 4).astype(np.float32)
y = (x[:, :1] + 4 * (r.rand(48, 1) < 0.15)).astype(np.float32)
net = nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 1))
mse = nn.MSELoss()
opt = nn.Momentum(net.trainable_params(), 0.03, 0.9)
gradients = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())

loader = CleaningLoader(x, y, 6)
batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for rows, a, b in batches:
        errors = np.abs(net(ms.Tensor(a)).asnumpy() - b)[:, 0]
        loader.flag(rows[errors.argmax()])
        loss, grads = gradients(ms.Tensor(a), ms.Tensor(b))
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
