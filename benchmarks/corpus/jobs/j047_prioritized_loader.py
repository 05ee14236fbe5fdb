# truth: exact
# class: data
# head: imports_tensor_ops
# A loader draws rows by priorities that the loop reports back; priorities, place and generator are all in its state_dict.


ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3147)


class PrioritizedLoader:
    def __init__(self, x, y, batch, per_epoch, seed):
        self.x, self.y, self.batch, self.per_epoch = x, y, batch, per_epoch
        self.priority = np.ones(len(x))
        self.rng = np.random.RandomState(seed)
        self.at = 0

    def __iter__(self):
        if self.at >= self.per_epoch:
            self.at = 0
        while self.at < self.per_epoch:
            p = self.priority / self.priority.sum()
            chosen = self.rng.choice(len(self.x), self.batch, replace=False, p=p)
            self.at += 1
            yield chosen, self.x[chosen], self.y[chosen]

    def report(self, chosen, errors):
        self.priority[np.asarray(chosen)] = 0.05 + errors

    def state_dict(self):
        return {"priority": self.priority.copy(), "at": self.at, "rng": self.rng.get_state(legacy=False)}

    def load_state_dict(self, state):
        self.priority = np.array(state["priority"])
        self.at = int(state["at"])
        self.rng.set_state(state["rng"])


r = np.random.RandomState(47)
x = r.randn(40, 4).astype(np.float32)
y = np.where(x[:, :1] > 1, 3.0, x[:, 1:2]).astype(np.float32)
net = nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 1))
opt = nn.Momentum(net.trainable_params(), 0.05, 0.9)


def forward(a, b):
    e = (net(a) - b) ** 2
    return e.mean(), e


vg = ms.value_and_grad(forward, None, net.trainable_params(), has_aux=True)
loader = PrioritizedLoader(x, y, 5, 8, seed=4)
batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for chosen, a, b in batches:
        (loss, errors), grads = vg(Tensor(a), Tensor(b))
        opt(grads)
        loader.report(chosen, errors.asnumpy()[:, 0].astype(np.float64))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
