# truth: differs
# class: attribute
# head: pynative_dataset_ops
# SVRG: every 12 steps a snapshot of the weights and its full gradient; the steps between are corrected by them.

ms.set_seed(129)

r = np.random.RandomState(29)
x = r.randn(80, 6).astype(np.float32)
y = (x @ r.randn(6, 1) + 0.3 * r.randn(80, 1)).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(8)


def build():
    return nn.SequentialCell(nn.Dense(6, 10), nn.Tanh(), nn.Dense(10, 1))


def gradient_of(model):
    return ms.value_and_grad(lambda x, y: ((model(x) - y) ** 2).mean(), None, model.trainable_params())


class SVRG:
    def __init__(self, net, every, rate):
        self.net, self.anchor = net, build()
        self.anchor.update_parameters_name("anchor.")
        self.grad, self.anchor_grad = gradient_of(self.net), gradient_of(self.anchor)
        self.every, self.rate, self.calls, self.full = every, rate, 0, None

    def snapshot(self):
        for a, p in zip(self.anchor.get_parameters(), self.net.get_parameters()):
            ops.assign(a, p)
        self.full = self.anchor_grad(ms.Tensor(x), ms.Tensor(y))[1]

    def step(self, xb, yb):
        if self.calls % self.every == 0:
            self.snapshot()
        self.calls += 1
        loss, grads = self.grad(xb, yb)
        _, old = self.anchor_grad(xb, yb)
        for p, g, o, f in zip(self.net.trainable_params(), grads, old, self.full):
            ops.assign_sub(p, self.rate * (g - o + f))
        return loss


net = build()
method = SVRG(net, every=12, rate=0.03)
batches = ck.data.resumable(train, epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net], batches)
    manager.restore(state)
    for xb, yb in batches:
        manager.fence()
        loss = method.step(xb, yb)
        manager.step(state, {"loss": loss})
    manager.save_final(state)
os._exit(0)
