# truth: differs
# class: global
# head: pynative_ops
# A neural ODE with an adaptive Euler/Heun integrator whose last accepted step size is the first guess for the next batch.

ms.set_seed(39)


class Field(nn.Cell):
    def __init__(self, dim=3):
        super().__init__()
        self.fc1 = nn.Dense(dim, 10)
        self.fc2 = nn.Dense(10, dim)

    def construct(self, z):
        return self.fc2(ops.tanh(self.fc1(z)))


class AdaptiveHeun:
    """step size control, h survives from call to call as a warm start"""

    def __init__(self, tol=5e-3, h0=0.05, max_steps=12):
        self.tol, self.h, self.max_steps = tol, h0, max_steps

    def plan(self, field, z, t_end=1.0):
        """dry run without gradients, returns the list of steps"""
        steps, t = [], 0.0
        while t < t_end - 1e-9 and len(steps) < self.max_steps:
            h = min(self.h, t_end - t)
            k1 = field(z)
            k2 = field(z + h * k1)
            err = float(((k2 - k1) ** 2).mean().asnumpy()) ** 0.5 * h / 2
            z = z + 0.5 * h * (k1 + k2)
            t += h
            steps.append(h)
            self.h = float(np.clip(self.h * (self.tol / (err + 1e-8)) ** 0.5, 0.5 * self.h, 2.0 * self.h))
            self.h = min(max(self.h, 0.03), 0.5)
        return steps


def integrate(field, z, steps):
    for h in steps:
        k1 = field(z)
        k2 = field(z + h * k1)
        z = z + 0.5 * h * (k1 + k2)
    return z


field = Field()
solver = AdaptiveHeun()
opt = nn.Adam(field.trainable_params(), learning_rate=0.02)

r = np.random.RandomState(2)
Z0 = r.randn(48, 3).astype(np.float32)
rot = np.array([[0, -1, 0], [1, 0, 0], [0, 0, -0.5]], np.float32)
Z1 = (Z0 + Z0 @ rot.T).astype(np.float32)
batches = ck.data.resumable([(ms.Tensor(Z0[i : i + 6]), ms.Tensor(Z1[i : i + 6])) for i in range(0, 48, 6)], epochs=3)

with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([field, opt], batches)
    manager.restore(state)
    for z0, z1 in batches:
        steps = solver.plan(field, z0)

        def loss_fn(a, b):
            return ((integrate(field, a, steps) - b) ** 2).mean()

        loss, grads = ms.value_and_grad(loss_fn, None, field.trainable_params())(z0, z1)
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
