# truth: exact
# class: attribute
# head: regression_8_arrays

rows = [(Tensor(X[i * 8 : i * 8 + 8]), Tensor(Y[i * 8 : i * 8 + 8])) for i in range(8)]
loss_fn = nn.MSELoss()


class MySGDM(nn.Optimizer):
    def __init__(self, params, lr):
        super().__init__(lr, params)
        self.v = self.parameters.clone(prefix="v", init="zeros")

    def construct(self, grads):
        lr = self.get_lr()
        for p, v, gr in zip(self.parameters, self.v, grads):
            ops.assign(v, 0.9 * v + gr)
            ops.assign(p, p - lr * v)
        return True


net = nn.Dense(8, 1)
optimizer = MySGDM(net.trainable_params(), 0.01)
gf = ms.value_and_grad(lambda x, y: loss_fn(net(x), y), None, net.trainable_params())
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for x, y in batches:
        l, gr = gf(x, y)
        optimizer(gr)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
