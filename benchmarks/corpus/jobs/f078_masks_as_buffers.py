# truth: exact
# class: attribute
# head: imports_ops
# Lottery-ticket pruning: masks are buffers of the layers, renewed at the start of each epoch; PYNATIVE.


ms.set_seed(86)
ms.set_context(mode=ms.PYNATIVE_MODE)


class MaskedDense(nn.Cell):
    def __init__(self, n, m):
        super().__init__()
        self.inner = nn.Dense(n, m)
        self.register_buffer("mask", ops.ones((m, n), ms.float32))

    def construct(self, x):
        return ops.matmul(x, (self.inner.weight * self.mask).T) + self.inner.bias

    def prune(self, share):
        w = np.abs(self.inner.weight.asnumpy()) * self.mask.asnumpy()
        alive = w[w > 0]
        cut = np.quantile(alive, share)
        self.mask[:] = ms.Tensor((w > cut).astype(np.float32))


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.l1 = MaskedDense(8, 14)
        self.l2 = MaskedDense(14, 3)

    def construct(self, x, y):
        return ops.cross_entropy(self.l2(ops.relu(self.l1(x))), y)


net = Net()
cell = ck.AccumulationTrainCell(net, nn.Adam(net.trainable_params(), 0.01), 2).set_train()

r = np.random.RandomState(86)
rows = []
for x in r.randn(8, 6, 8).astype(np.float32):
    rows.append((ms.Tensor(x), ms.Tensor(x[:, :3].argmax(1).astype(np.int32))))
per_epoch = len(rows)
batches = ck.data.resumable(rows, epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    point = manager.restore(state)
    for n, (x, y) in enumerate(batches, point.batches_delivered):
        if n and n % per_epoch == 0:
            for layer in (net.l1, net.l2):
                layer.prune(0.2)
        cell(x, y)
        manager.step(state)
    manager.save_final(state)
print("alive:", int(net.l1.mask.sum()), int(net.l2.mask.sum()))
os._exit(0)
