# truth: exact
# class: attribute
# head: imports_parameter
# A constrained classifier by an augmented Lagrangian: multiplier and penalty are Parameters of a cell that is given by name.


ms.set_seed(61)


class Multipliers(nn.Cell):
    def __init__(self, n, rho=1.0, growth=1.05):
        super().__init__()
        self.lam = Parameter(Tensor(np.zeros(n, np.float32)), name="lam", requires_grad=False)
        self.rho = Parameter(Tensor(np.array([rho], np.float32)), name="rho", requires_grad=False)
        self.growth = growth

    def construct(self, violation):
        """penalty for c(x) <= 0"""
        active = ops.relu(self.lam + self.rho * violation)
        return ((active**2 - self.lam**2) / (2 * self.rho)).sum()

    def ascend(self, violation):
        lam = np.maximum(self.lam.asnumpy() + self.rho.asnumpy() * violation, 0)
        ops.assign(self.lam, Tensor(lam.astype(np.float32)))
        ops.assign(self.rho, Tensor((self.rho.asnumpy() * self.growth).astype(np.float32)))


class FairModel(nn.Cell):
    def __init__(self):
        super().__init__()
        self.net = nn.SequentialCell(nn.Dense(6, 8), nn.ReLU(), nn.Dense(8, 1))

    def construct(self, x):
        return ops.sigmoid(self.net(x))


model, multipliers = FairModel(), Multipliers(2)
opt = nn.Adam(model.trainable_params(), learning_rate=0.02)


def constraints(p, group):
    """the two groups' positive rates may differ by at most 0.05, both ways"""
    inverse = 1 - group
    gap = (p * group).sum() / (group.sum() + 1e-6) - (p * inverse).sum() / (inverse.sum() + 1e-6)
    return ops.stack((gap - 0.05, -gap - 0.05))


def lagrangian(x, y, group):
    p = model(x)
    bce = -(y * ops.log(p + 1e-6) + (1 - y) * ops.log(1 - p + 1e-6)).mean()
    c = constraints(p, group)
    return bce + multipliers(c), c


vg = ms.value_and_grad(lagrangian, None, model.trainable_params(), has_aux=True)
r = np.random.RandomState(21)
x = r.randn(64, 6).astype(np.float32)
group = (x[:, 5:6] > 0).astype(np.float32)
y = (x[:, :1] + 0.8 * group > 0.3).astype(np.float32)
batches = ck.data.resumable([tuple(Tensor(a[i : i + 8]) for a in (x, y, group)) for i in range(0, 64, 8)], epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([model, opt], batches, multipliers=multipliers)
    manager.restore(state)
    for batch in batches:
        manager.fence()
        (value, c), grads = vg(*batch)
        opt(grads)
        multipliers.ascend(c.asnumpy())
        manager.step(state)
    manager.save_final(state)
os._exit(0)
