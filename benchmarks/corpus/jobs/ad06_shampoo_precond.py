# truth: differs
# class: attribute
# head: regression_6_rows

net = nn.SequentialCell(nn.Dense(6, 12), nn.Tanh(), nn.Dense(12, 1))

loss_fn = nn.MSELoss()


class MiniShampoo(nn.Optimizer):
    def __init__(self, params, lr):
        super().__init__(lr, params)
        self.stat = {p.name: 1e-2 * np.eye(p.shape[0]) for p in self.parameters}
        self.root = {}
        self.t = 0

    def construct(self, grads):
        for p, g in zip(self.parameters, grads):
            m = g.asnumpy().reshape(p.shape[0], -1).astype(np.float64)
            self.stat[p.name] += m @ m.T
            if self.t % 5 == 0:
                w, v = np.linalg.eigh(self.stat[p.name])
                self.root[p.name] = (v * w**-0.5) @ v.T
            step = (self.root[p.name] @ m).reshape(p.shape)
            ops.assign(p, p - self.get_lr() * Tensor(step.astype(np.float32)))
        self.t += 1
        return True


opt = MiniShampoo(net.trainable_params(), 0.02)
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
