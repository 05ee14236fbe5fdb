# truth: differs
# class: attribute
# head: classes_6_adam



class Ensemble:
    def __init__(self, alpha=0.6):
        self.alpha, self.table = alpha, {}

    def lookup(self, ids, fallback):
        return np.stack([self.table.get(int(i), row) for i, row in zip(ids, fallback)])

    def absorb(self, ids, rows):
        for i, row in zip(ids, rows):
            old = self.table.get(int(i))
            self.table[int(i)] = row if old is None else self.alpha * old + (1 - self.alpha) * row


ensemble = Ensemble()


def forward(x, y, z):
    p = ops.softmax(net(x), -1)
    return ops.cross_entropy(net(x), y) + 2.0 * ((p - z) ** 2).mean()


grad_fn = ms.value_and_grad(forward, None, opt.parameters)
batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for ids, x, y in batches:
        now = ops.softmax(net(x), -1).asnumpy()
        _, grads = grad_fn(x, y, Tensor(ensemble.lookup(ids, now)))
        opt(grads)
        ensemble.absorb(ids, now)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
