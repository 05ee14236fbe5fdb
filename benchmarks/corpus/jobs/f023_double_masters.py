# truth: differs
# class: iterator
# head: imports_ops
# Mixed precision by hand: float64 master weights in a list, of which the network only gets the float32 rounding.


ms.set_seed(4)


class MasterSGD:
    """keeps the weights in double precision, like the C++ trainer we come from"""

    def __init__(self, params, lr, mu):
        self.params = list(params)
        self.lr, self.mu = lr, mu
        self.master = None

    def _lazy_init(self):
        if self.master is None:
            self.master = [p.asnumpy().astype(np.float64) for p in self.params]

    def apply(self, grads):
        self._lazy_init()
        for i, (p, g) in enumerate(zip(self.params, grads)):
            g = g.asnumpy().astype(np.float64)
            self.master[i] -= self.lr * (g + self.mu * self.master[i])
            ops.assign(p, ms.Tensor(self.master[i].astype(np.float32)))


net = nn.SequentialCell(nn.Dense(8, 16), nn.ReLU(), nn.Dense(16, 3))
criterion = nn.MSELoss()
weights = net.trainable_params()
sgd = MasterSGD(weights, 0.0137, 1e-3)
vg = ms.value_and_grad(lambda x, y: criterion(net(x), y), None, weights)

r = np.random.RandomState(6)
X = r.randn(8, 7, 8).astype(np.float32)
batches = ck.data.resumable([(ms.Tensor(x), ms.Tensor(np.sin(x[:, :3]))) for x in X], epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"],
    save=ck.SaveEvery(micro_steps=5),
    saving=ck.Saving(when_busy="wait", window="off"),
) as manager:
    state = ck.StateManager(net, batches)
    manager.restore(state)
    for i, (x, y) in enumerate(batches):
        loss, grads = vg(x, y)
        sgd.apply(grads)
        if i % 10 == 0:
            print(i, loss)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
