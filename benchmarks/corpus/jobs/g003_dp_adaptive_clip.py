# truth: differs
# class: attribute
# head: imports
# DP with adaptive clipping (Andrew et al. 2021): the clip norm tracks a quantile of update norms geometrically, as a plain attribute.


ms.set_seed(31)


class QuantileClipper:
    """C <- C * exp(-eta * (fraction below C - gamma))."""

    def __init__(self, c0=1.0, gamma=0.5, eta=0.3):
        self.c = c0
        self.gamma = gamma
        self.eta = eta

    @property
    def threshold(self):
        return np.float32(self.c)

    def __call__(self, grads_per_part):
        norms = [np.sqrt(sum((g**2).sum() for g in part)) for part in grads_per_part]
        clipped = [[g * min(1.0, self.threshold / (n + 1e-9)) for g in part] for part, n in zip(grads_per_part, norms)]
        below = float(np.mean([n <= self.c for n in norms]))
        self.c *= float(np.exp(-self.eta * (below - self.gamma)))
        return [np.mean(cols, axis=0).astype(np.float32) for cols in zip(*clipped)]


net = nn.SequentialCell(nn.Dense(6, 8), nn.ReLU(), nn.Dense(8, 1))
params = net.trainable_params()
mse = nn.MSELoss()
opt = nn.Momentum(params, learning_rate=0.1, momentum=0.9)
vg = ms.value_and_grad(lambda x, y: mse(net(x), y), None, params)
clipper = QuantileClipper()

rng = np.random.RandomState(5)
feats = rng.randn(64, 6).astype(np.float32)
labels = (feats @ rng.randn(6, 1)).astype(np.float32)
noise = np.random.default_rng(17)

batches = ck.data.resumable([(feats[i : i + 8], labels[i : i + 8]) for i in range(0, 64, 8)], epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches, noise=noise)
    manager.restore(state)
    for x, y in batches:
        parts = []
        for k in range(0, 8, 2):
            _, g = vg(ms.Tensor(x[k : k + 2]), ms.Tensor(y[k : k + 2]))
            parts.append([a.asnumpy().copy() for a in g])
        mean = clipper(parts)
        sigma = 0.05 * clipper.threshold
        opt(tuple(ms.Tensor((m + noise.normal(0, sigma, m.shape)).astype(np.float32)) for m in mean))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
