# truth: exact
# class: random
# head: saving_tensor
# each step makes its mixup generator anew from (seed, step), and the step comes from the position

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(1)


def blobs(seed, classes=4, dim=8, total=64, size=8):
    rng = np.random.default_rng(seed)
    centers = 2.0 * rng.normal(size=(classes, dim))
    labels = rng.integers(0, classes, total)
    feats = (centers[labels] + rng.normal(size=(total, dim))).astype(np.float32)
    onehot = np.eye(classes, dtype=np.float32)[labels]
    return [(Tensor(feats[k : k + size]), Tensor(onehot[k : k + size])) for k in range(0, total, size)]


rows = blobs(21)


class Mixup:
    def __init__(self, seed, alpha=0.4):
        self.seed, self.alpha = seed, alpha
        self.rng = None

    def at(self, step):
        self.rng = np.random.default_rng((self.seed, step))
        return self

    def __call__(self, x, y):
        lam = float(self.rng.beta(self.alpha, self.alpha))
        order = self.rng.permutation(len(x))
        xs, ys = x.asnumpy(), y.asnumpy()
        mix = lam * xs + (1 - lam) * xs[order], lam * ys + (1 - lam) * ys[order]
        return tuple(Tensor(m.astype(np.float32)) for m in mix)


net = nn.SequentialCell(nn.Dense(8, 16), nn.ReLU(), nn.Dense(16, 4), nn.Softmax())
optimizer = nn.Adam(net.trainable_params(), 0.01)


def forward_fn(x, y):
    return ((net(x) - y) ** 2).sum(1).mean()


grad_fn = ms.value_and_grad(forward_fn, None, optimizer.parameters)
mixup = Mixup(seed=40)
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for step, (x, y) in enumerate(batches, point.batches_delivered):
        loss, grads = grad_fn(*mixup.at(step)(x, y))
        optimizer(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
