# truth: exact
# class: random
# head: pynative_ops
# CMA-ES over the weights of a small layer: the mean is the layer; covariance, step size, path and generator are given by name.

ms.set_seed(4150)


class CMA:
    """(mu/mu, lambda) with rank-one and rank-mu updates and cumulative step-size adaptation, much simplified"""

    def __init__(self, size, offspring=6, sigma=0.3):
        self.offspring, self.parents = offspring, offspring // 2
        self.cov, self.path, self.sigma = np.eye(size), np.zeros(size), sigma

    def ask(self, mean, rng):
        root = np.linalg.cholesky(self.cov)
        self.steps = [root @ rng.standard_normal(len(mean)) for _ in range(self.offspring)]
        return [mean + self.sigma * step for step in self.steps]

    def tell(self, scores):
        best = np.argsort(scores, kind="stable")[: self.parents]
        step = np.mean([self.steps[i] for i in best], 0)
        self.path = 0.7 * self.path + 0.7 * step
        mu = np.mean([np.outer(self.steps[i], self.steps[i]) for i in best], 0)
        self.cov = 0.8 * self.cov + 0.1 * np.outer(self.path, self.path) + 0.1 * mu
        moved = self.sigma * step
        self.sigma *= float(np.exp(0.1 * (self.path @ self.path / len(step) - 1)))
        self.sigma = min(0.6, self.sigma)
        return moved


layer = nn.Dense(4, 1)
params = layer.trainable_params()


def read():
    return np.concatenate([p.asnumpy().ravel() for p in params]).astype(np.float64)


def write(vector):
    ops.assign(params[0], ms.Tensor(vector[:4].reshape(1, 4).astype(np.float32)))
    ops.assign(params[1], ms.Tensor(vector[4:].astype(np.float32)))


r = np.random.RandomState(50)
rows = []
for _ in range(8):
    x = r.randn(8, 4).astype(np.float32)
    rows.append((x, (x @ [[1.0], [-2.0], [0.5], [0.0]] + 0.3).astype(np.float32)))
cma, rng = CMA(5), np.random.default_rng(50)

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([layer], batches, rng=rng, cma=ck.attributes(cma, "cov", "path", "sigma"))
    manager.restore(state)
    for x, y in batches:
        mean = read()
        scores = [float(np.square(x @ c[:4, None] + c[4] - y).mean()) for c in cma.ask(mean, rng)]
        moved = cma.tell(scores)
        manager.fence()
        write(mean + moved)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
