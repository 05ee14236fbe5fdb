# truth: differs
# class: closure
# head: pynative_ops
# Distance over gradients (DoG), an nn.Optimizer: the sum of squared gradients is a Parameter; the point it started from is cached on first use.

ms.set_seed(4155)


class DoG(nn.Optimizer):
    def __init__(self, params, eps=0.02):
        super().__init__(1.0, params)
        self.eps = eps
        self.total = ms.Parameter(np.full(1, 1e-8, np.float32), name="total", requires_grad=False)

    def distance(self):
        """how far the weights are from where they began"""
        if not hasattr(self, "_origin"):
            object.__setattr__(self, "_origin", [p.asnumpy().copy() for p in self.parameters])
        return sum(float(np.square(p.asnumpy() - o).sum()) for p, o in zip(self.parameters, self._origin)) ** 0.5

    def construct(self, gradients):
        ops.assign_add(self.global_step, ms.Tensor([1], ms.int32))
        ops.assign_add(self.total, sum((g * g).sum() for g in gradients).reshape(1))
        rate = (self.eps + self.distance()) / ops.sqrt(self.total)
        for p, g in zip(self.parameters, gradients):
            ops.assign(p, p - 0.5 * rate * g)
        return True


r = np.random.RandomState(55)
rows = []
for _ in range(8):
    x = r.randn(8, 5).astype(np.float32)
    rows.append((ms.Tensor(x), ms.Tensor((x[:, :1] * x[:, 1:2] + x[:, 2:3]).astype(np.float32))))
net = nn.SequentialCell(nn.Dense(5, 8), nn.Tanh(), nn.Dense(8, 1))
mse = nn.MSELoss()
opt = DoG(net.trainable_params())
gradients = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x, y in batches:
        loss, grads = gradients(x, y)
        manager.fence()
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
