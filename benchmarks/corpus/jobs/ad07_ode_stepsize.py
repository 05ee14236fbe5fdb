# truth: differs
# class: attribute
# head: regression_6_rows



class AdaptiveSolver:
    def __init__(self, h=0.5, tol=0.02):
        self.h, self.tol = h, tol

    def integrate(self, f, y):
        t = 0.0
        while t < 1.0:
            h = min(self.h, 1.0 - t)
            k1 = f(y)
            k2 = f(y + h * k1)
            err = float(ops.stop_gradient(ops.abs(h * (k2 - k1)).max()))
            y, t = y + h * (k1 + k2) / 2, t + h
            self.h = min(1.0, max(0.1, 0.9 * self.h * (self.tol / max(err, 1e-6)) ** 0.5))
        return y


class ODENet(nn.Cell):
    def __init__(self):
        super().__init__()
        self.stem, self.field, self.head = nn.Dense(6, 6), nn.Dense(6, 6), nn.Dense(6, 1)
        self.solver = AdaptiveSolver()

    def dynamics(self, y):
        return ops.tanh(self.field(y))

    def construct(self, x):
        return self.head(self.solver.integrate(self.dynamics, self.stem(x)))


net = ODENet()
loss_fn = nn.MSELoss()
opt = nn.Momentum(net.trainable_params(), 0.03, 0.9)
grad_fn = ms.value_and_grad(lambda x, y: loss_fn(net(x), y), None, opt.parameters)

batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x, y in batches:
        loss, grads = grad_fn(x, y)
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
