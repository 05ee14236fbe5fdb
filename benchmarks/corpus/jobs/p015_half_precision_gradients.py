# truth: differs
# class: attribute
# head: imports_dataset
# Gradients travel in float16 with a dynamic loss scale that skips steps on overflow.


ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(115)


class LossScale:
    def __init__(self, start=2.0**24, window=12):
        self.value, self.window, self.good = start, window, 0

    def update(self, overflow):
        if overflow:
            self.value, self.good = max(self.value / 2, 1.0), 0
            return
        self.good += 1
        if self.good == self.window:
            self.value, self.good = self.value * 2, 0


r = np.random.RandomState(15)
x = r.randn(72, 5).astype(np.float32)
y = (x[:, :1] * x[:, 1:2] + x[:, 2:3] ** 2).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(6)
net = nn.SequentialCell(nn.Dense(5, 16), nn.Tanh(), nn.Dense(16, 1))
optimizer = nn.Adam(net.trainable_params(), 1e-2)
scale = LossScale()
grad_fn = ms.value_and_grad(lambda x, y, s: ((net(x) - y) ** 2).mean() * s, None, net.trainable_params())

batches = ck.data.resumable(train, epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, optimizer], batches)
    manager.restore(state)
    for xb, yb in batches:
        _, grads = grad_fn(xb, yb, ms.Tensor(scale.value, ms.float32))
        with np.errstate(over="ignore"):
            half = [g.asnumpy().astype(np.float16) for g in grads]
        overflow = not all(np.isfinite(g).all() for g in half)
        if not overflow:
            optimizer(tuple(ms.Tensor(g.astype(np.float32) / np.float32(scale.value)) for g in half))
        scale.update(overflow)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
