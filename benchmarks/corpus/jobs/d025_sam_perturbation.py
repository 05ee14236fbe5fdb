# truth: exact, may be named
# class: attribute
# head: regression_8_rows
# SAM keeps the perturbed and the old weights in a dict, but writes both anew in each step before it reads them

net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
loss_fn = nn.MSELoss()


class SAM:
    def __init__(self, base, rho=0.05):
        self.base, self.rho = base, rho
        self.state = {}

    def first_step(self, grads):
        norm = float(np.sqrt(sum((g.asnumpy() ** 2).sum() for g in grads))) + 1e-12
        for p, g in zip(self.base.parameters, grads):
            self.state[p.name] = {"old": p.value().copy(), "e_w": g * (self.rho / norm)}
            ops.assign(p, p + self.state[p.name]["e_w"])

    def second_step(self, grads):
        for p in self.base.parameters:
            ops.assign(p, self.state[p.name]["old"])
        self.base(grads)


optimizer = nn.Momentum(net.trainable_params(), 0.03, 0.9)
sam = SAM(optimizer)
grad_fn = ms.value_and_grad(lambda x, y: loss_fn(net(x), y), None, optimizer.parameters)

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    manager.restore(state)
    for x, y in batches:
        loss, grads = grad_fn(x, y)
        sam.first_step(grads)
        _, grads = grad_fn(x, y)
        sam.second_step(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
