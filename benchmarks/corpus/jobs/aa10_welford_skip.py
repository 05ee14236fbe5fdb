# truth: differs
# class: attribute
# head: regression_6_rows

net = nn.SequentialCell(nn.Dense(6, 12), nn.Tanh(), nn.Dense(12, 1))

loss_fn = nn.MSELoss()
opt = nn.Momentum(net.trainable_params(), 0.02, 0.9)


class Welford:
    __slots__ = ("n", "mean", "m2")

    def __init__(self):
        self.n, self.mean, self.m2 = 0, 0.0, 0.0

    def push(self, v):
        self.n += 1
        d = v - self.mean
        self.mean += d / self.n
        self.m2 += d * (v - self.mean)

    @property
    def std(self):
        return (self.m2 / max(self.n - 1, 1)) ** 0.5


class SafeStepper:
    def __init__(self, optimizer, z=0.5):
        self.optimizer, self.z, self.stats = optimizer, z, Welford()

    def __call__(self, grads):
        norm = float(ops.sqrt(sum((g * g).sum() for g in grads)))
        outlier = self.stats.n > 3 and norm > self.stats.mean + self.z * self.stats.std
        self.stats.push(norm)
        if not outlier:
            self.optimizer(grads)
        return not outlier


apply = SafeStepper(opt)
grad_fn = ms.value_and_grad(lambda x, y: loss_fn(net(x), y), None, opt.parameters)
batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x, y in batches:
        loss, grads = grad_fn(x, y)
        apply(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
