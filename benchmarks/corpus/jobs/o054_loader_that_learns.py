# truth: exact
# class: data
# head: pynative
# Importance sampling: the loop tells the loader the losses of its rows, and the loader draws the next epoch's order by them; scores, order, epoch and place are all in its state_dict.

ms.set_seed(3554)


class ImportanceLoader:
    def __init__(self, rows, size, seed):
        self.rows, self.size, self.seed = rows, size, seed
        self.epoch = self.place = 0
        self.scores = np.ones(rows)
        self.order = self.draw()

    def __len__(self):
        return self.rows // self.size

    def draw(self):
        rng = np.random.default_rng([self.seed, self.epoch])
        return rng.choice(self.rows, len(self) * self.size, p=self.scores / self.scores.sum())

    def __iter__(self):
        if self.place == len(self):
            self.epoch, self.place = self.epoch + 1, 0
            self.order = self.draw()
        while self.place < len(self):
            at = self.place * self.size
            self.place += 1
            yield self.order[at : at + self.size].copy()

    def tell(self, numbers, losses):
        self.scores[numbers] = 0.5 * self.scores[numbers] + 0.5 * (losses + 0.05)

    def state_dict(self):
        return {
            "epoch": self.epoch,
            "place": self.place,
            "scores": self.scores.copy(),
            "order": self.order.copy(),
        }

    def load_state_dict(self, state):
        self.epoch, self.place = state["epoch"], state["place"]
        self.scores, self.order = np.array(state["scores"]), np.array(state["order"])


r = np.random.RandomState(54)
x = r.randn(48, 5).astype(np.float32)
y = (x[:, :1] * x[:, 1:2] + (r.rand(48, 1) < 0.1) * 3).astype(np.float32)
net = nn.SequentialCell(nn.Dense(5, 10), nn.Tanh(), nn.Dense(10, 1))
optimizer = nn.Momentum(net.trainable_params(), 0.03, 0.9)


def forward(x, y):
    each = ((net(x) - y) ** 2).mean(-1)
    return each.mean(), each


gradients = ms.value_and_grad(forward, None, net.trainable_params(), has_aux=True)
loader = ImportanceLoader(48, 6, seed=54)
batches = ck.data.resumable(loader, epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, optimizer], batches)
    manager.restore(state)
    for numbers in batches:
        numbers = np.asarray(numbers)
        (loss, each), grads = gradients(ms.Tensor(x[numbers]), ms.Tensor(y[numbers]))
        optimizer(grads)
        loader.tell(numbers, each.asnumpy())
        manager.step(state)
    manager.save_final(state)
os._exit(0)
