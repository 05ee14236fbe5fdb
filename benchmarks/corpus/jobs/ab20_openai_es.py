# truth: differs
# class: attribute
# head: saving_pynative_dataset_parameter

rng0 = np.random.default_rng(3)
X = rng0.normal(size=(80, 4)).astype(np.float32)
Y = np.tanh(X[:, :1] - X[:, 1:2]).astype(np.float32)
loader = [(Tensor(X[i : i + 8]), Tensor(Y[i : i + 8])) for i in range(0, 80, 8)]
net = nn.SequentialCell(nn.Dense(4, 4), nn.Tanh(), nn.Dense(4, 1))


class NoiseTable:
    def __init__(self, size=997):
        self.values = np.random.default_rng(42).normal(size=size).astype(np.float32)
        self.at = 0

    def take(self, n):
        picked = np.take(self.values, range(self.at, self.at + n), mode="wrap")
        self.at = (self.at + n) % len(self.values)
        return picked


class EvolutionStrategy:
    def __init__(self, net, sigma=0.1, lr=0.05):
        self.params = net.trainable_params()
        self.shapes = [p.shape for p in self.params]
        self.sigma, self.lr, self.table = sigma, lr, NoiseTable()

    def write(self, flat):
        at = 0
        for p, s in zip(self.params, self.shapes):
            n = int(np.prod(s))
            ops.assign(p, Tensor(flat[at : at + n].reshape(s)))
            at += n

    def step(self, objective):
        theta = np.concatenate([p.asnumpy().ravel() for p in self.params])
        total = np.zeros_like(theta)
        for _ in range(3):
            eps = self.table.take(len(theta))
            scores = []
            for sign in (1, -1):
                self.write(theta + sign * self.sigma * eps)
                scores.append(objective())
            total += (scores[0] - scores[1]) * eps
        self.write(theta - self.lr / (6 * self.sigma) * total)


es = EvolutionStrategy(net)
batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net], batches)
    manager.restore(state)
    for x, y in batches:
        es.step(lambda: float(((net(x) - y) ** 2).mean()))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
