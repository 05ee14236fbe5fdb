# truth: differs
# class: attribute
# head: classes_6_rows

net = nn.SequentialCell(nn.Dense(6, 12), nn.ReLU(), nn.Dense(12, 4))

groups = (X[:, 0] > 0).astype(np.int32) + 2 * (X[:, 1] > 0).astype(np.int32)
loader = [(a, b, groups[i * 8 : i * 8 + 8]) for i, (a, b) in enumerate(loader)]
opt = nn.Momentum(net.trainable_params(), 0.05, 0.9)


def forward(x, y, w):
    losses = ops.cross_entropy(net(x), y, reduction="none")
    return (losses * w).sum(), losses


grad_fn = ms.value_and_grad(forward, None, opt.parameters, has_aux=True)


class GroupDRO:
    def __init__(self, n, eta=0.5):
        self.q, self.eta = np.ones(n) / n, eta

    def weights(self, group):
        count = np.bincount(group, minlength=len(self.q)).clip(1)
        return Tensor((self.q / count)[group].astype(np.float32))

    def update(self, group, losses):
        for gid in np.unique(group):
            self.q[gid] *= np.exp(self.eta * losses[group == gid].mean())
        self.q /= self.q.sum()


dro = GroupDRO(4)


def train():
    batches = ck.data.resumable(loader, epochs=3)
    with ck.CheckpointManager(ROOT, **SAVE) as manager:
        state = ck.StateManager([net, opt], batches)
        manager.restore(state)
        for x, y, group in batches:
            (loss, losses), grads = grad_fn(x, y, dro.weights(group))
            opt(grads)
            dro.update(group, losses.asnumpy().astype(np.float64).round(3))
            manager.step(state)
        manager.save_final(state)


train()
os._exit(0)
