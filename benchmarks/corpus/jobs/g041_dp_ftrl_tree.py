# truth: differs
# class: random
# head: imports_ops
# DP-FTRL: the noise of prefix sums comes from a binary tree whose nodes live in a dict of the tree object; the generator is given by name.


ms.set_seed(83)


class TreeNoise:
    """Binary counter: node[level] holds the noise of the finished subtree of 2**level leaves."""

    def __init__(self, shapes, sigma, rng):
        self.shapes, self.sigma, self.rng = shapes, sigma, rng
        self.nodes = {}

    def _draw(self):
        return [self.rng.normal(0, self.sigma, s) for s in self.shapes]

    def prefix_noise(self):
        level = 0
        while level in self.nodes:  # carry
            del self.nodes[level]
            level += 1
        self.nodes[level] = self._draw()
        return [sum(parts) for parts in zip(*self.nodes.values())]


class FTRL(nn.Cell):
    """weights = initial - lr * (sum of gradients + tree noise); the sums and initial weights are Parameters."""

    def __init__(self, params, lr):
        super().__init__()
        self.lr = lr
        self._targets = ms.ParameterTuple(params)
        self.start = ms.ParameterTuple(
            [ms.Parameter(ms.Tensor(p.asnumpy().copy()), name="start." + p.name, requires_grad=False) for p in params]
        )
        self.sums = ms.ParameterTuple(
            [
                ms.Parameter(ms.Tensor(np.zeros(p.shape, np.float32)), name="sum." + p.name, requires_grad=False)
                for p in params
            ]
        )

    def update(self, grads, noise):
        for w, w0, s, g, n in zip(self._targets, self.start, self.sums, grads, noise):
            total = s.asnumpy() + g
            ops.assign(s, ms.Tensor(total.astype(np.float32)))
            ops.assign(w, ms.Tensor((w0.asnumpy() - self.lr * (total + n)).astype(np.float32)))


def clip(grads, norm=1.0):
    size = np.sqrt(sum((g**2).sum() for g in grads))
    return [g * min(1.0, norm / (size + 1e-9)) for g in grads]


net = nn.SequentialCell(nn.Dense(6, 6), nn.Tanh(), nn.Dense(6, 2))
params = net.trainable_params()
ftrl = FTRL(params, lr=0.15)
vg = ms.value_and_grad(lambda x, y: ops.cross_entropy(net(x), y), None, params)
rng = np.random.default_rng(1)
tree = TreeNoise([p.shape for p in params], 0.3, rng)

X = np.random.RandomState(4).randn(64, 6).astype(np.float32)
Y = (X[:, 0] * X[:, 1] > 0).astype(np.int32)
batches = ck.data.resumable([(ms.Tensor(X[i : i + 8]), ms.Tensor(Y[i : i + 8])) for i in range(0, 64, 8)], epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, ftrl], batches, rng=rng)
    manager.restore(state)
    for x, y in batches:
        manager.fence()
        loss, grads = vg(x, y)
        ftrl.update(clip([g.asnumpy().copy() for g in grads]), tree.prefix_noise())
        manager.step(state)
    manager.save_final(state)
os._exit(0)
