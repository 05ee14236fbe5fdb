# truth: exact
# class: attribute
# head: regression_6_rows



class MoE(nn.Cell):
    def __init__(self, n=3):
        super().__init__()
        self.gate = nn.Dense(6, n)
        self.experts = nn.CellList([nn.Dense(6, 1) for _ in range(n)])
        self.bias = Parameter(ops.zeros((n,), ms.float32), name="bias", requires_grad=False)

    def route(self, x):
        return ops.softmax(self.gate(x) + self.bias, -1)

    def construct(self, x):
        w = self.route(x)
        return sum(w[:, i : i + 1] * e(x) for i, e in enumerate(self.experts))


net = MoE()
loss_fn = nn.MSELoss()
opt = nn.Momentum(net.trainable_params(), 0.03, 0.9)
grad_fn = ms.value_and_grad(lambda x, y: loss_fn(net(x), y), None, opt.parameters)


def balance(net, x, speed=0.05):
    load = np.bincount(net.route(x).asnumpy().argmax(1), minlength=net.bias.shape[0])
    ops.assign(net.bias, net.bias - Tensor((speed * np.sign(load - load.mean())).astype(np.float32)))


batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x, y in batches:
        loss, grads = grad_fn(x, y)
        opt(grads)
        balance(net, x)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
