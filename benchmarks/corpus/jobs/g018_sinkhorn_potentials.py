# truth: exact
# class: attribute
# head: imports
# Optimal transport to anchors with warm-started Sinkhorn potentials, which are an object with state_dict given by name.


ms.set_seed(18)


class SinkhornSolver:
    def __init__(self, n, m, eps=0.5, iterations=2):
        self.eps, self.iterations = eps, iterations
        self.f = np.zeros(n)
        self.g = np.zeros(m)

    def state_dict(self):
        return {"f": self.f, "g": self.g}

    def load_state_dict(self, state):
        self.f = np.array(state["f"])
        self.g = np.array(state["g"])

    @staticmethod
    def _softmin(z, axis):
        lo = z.min(axis=axis, keepdims=True)
        return lo.squeeze(axis) - np.log(np.exp(-(z - lo)).sum(axis=axis))

    def plan(self, cost):
        n, m = cost.shape
        for _ in range(self.iterations):
            self.f = self.eps * (self._softmin((cost - self.g[None, :]) / self.eps, 1) - np.log(n))
            self.g = self.eps * (self._softmin((cost - self.f[:, None]) / self.eps, 0) - np.log(m))
        return np.exp((self.f[:, None] + self.g[None, :] - cost) / self.eps).astype(np.float32)


encoder = nn.SequentialCell(nn.Dense(6, 8), nn.Tanh(), nn.Dense(8, 2))
opt = nn.Adam(encoder.trainable_params(), learning_rate=0.02)
anchors = ms.Tensor(np.array([[1, 1], [-1, 1], [-1, -1], [1, -1]], np.float32))


def cost_of(x):
    z = encoder(x)
    return ((z.expand_dims(1) - anchors.expand_dims(0)) ** 2).sum(-1)


def loss_fn(x, plan):
    return (cost_of(x) * plan).sum()


vg = ms.value_and_grad(loss_fn, None, encoder.trainable_params())
X = np.random.RandomState(2).randn(48, 6).astype(np.float32)
solver = SinkhornSolver(6, 4)
batches = ck.data.resumable([(ms.Tensor(X[i : i + 6]),) for i in range(0, 48, 6)], epochs=3)

with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([encoder, opt], batches, sinkhorn=solver)
    manager.restore(state)
    for (x,) in batches:
        plan = solver.plan(cost_of(x).asnumpy().astype(np.float64))
        loss, grads = vg(x, ms.Tensor(plan))
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
