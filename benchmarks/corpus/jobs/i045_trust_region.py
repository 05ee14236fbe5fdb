# truth: differs
# class: attribute
# head: imports_ops
# A trust region is a context manager: the step is limited to its radius, and on exit the radius grows or shrinks by the ratio of actual to predicted gain.


ms.set_seed(345)


class Trial:
    predicted = actual = 0.0

    def __init__(self, radius):
        self.radius = radius

    def limit(self, norm):
        return min(1.0, self.radius / (norm + 1e-12))


class TrustRegion:
    __slots__ = ("radius", "largest", "_trial")

    def __init__(self, radius=0.1, largest=2.0):
        self.radius, self.largest = radius, largest

    def __enter__(self):
        self._trial = Trial(self.radius)
        return self._trial

    def __exit__(self, kind, value, trace):
        ratio = self._trial.actual / (self._trial.predicted + 1e-12)
        if ratio > 0.75:
            self.radius = min(1.4 * self.radius, self.largest)
        elif ratio < 0.25:
            self.radius *= 0.6
        return False


net = nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 1))
params = net.trainable_params()
mse = nn.MSELoss()
vg = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())
r = np.random.RandomState(45)
rows = []
for _ in range(8):
    x = r.randn(8, 4).astype(np.float32)
    rows.append((ms.Tensor(x), ms.Tensor((4 * x[:, :1] + x[:, 1:2] ** 2).astype(np.float32))))
region = TrustRegion()
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net], batches)
    manager.restore(state)
    for x, y in batches:
        manager.fence()
        with region as trial:
            loss, grads = vg(x, y)
            norm = float(np.sqrt(sum(float((g * g).sum().asnumpy()) for g in grads)))
            scale = trial.limit(norm)
            for p, g in zip(params, grads):
                ops.assign_sub(p, scale * g)
            trial.predicted = scale * norm**2
            trial.actual = float(loss.asnumpy()) - float(mse(net(x), y).asnumpy())
        manager.step(state)
    manager.save_final(state)
os._exit(0)
