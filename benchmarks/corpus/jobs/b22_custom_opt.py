# truth: differs
# class: attribute
# head: regression_8_arrays

rows = [(Tensor(X[i * 8 : i * 8 + 8]), Tensor(Y[i * 8 : i * 8 + 8])) for i in range(8)]
loss_fn = nn.MSELoss()


class LARSish(nn.Optimizer):
    def __init__(self, params, lr):
        super().__init__(lr, params)
        self.hist = [np.zeros(p.shape, np.float32) for p in self._parameters]

    def construct(self, grads):
        lr = float(self.get_lr())
        for i, (p, gr) in enumerate(zip(self._parameters, grads)):
            self.hist[i] = 0.9 * self.hist[i] + gr.asnumpy()
            ops.assign(p, p.value() - lr * Tensor(self.hist[i]))
        return True


net = nn.Dense(8, 1)
optimizer = LARSish(net.trainable_params(), 0.01)
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
