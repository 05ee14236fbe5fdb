# truth: differs
# class: attribute
# head: imports_ops
# Self-training: at the start of each new epoch the confident unlabeled samples get labels, kept in a dict by number.


ms.set_seed(44)


class SelfTrainer:
    def __init__(self, net, cell, pool):
        self.net = net
        self.cell = cell
        self.pool = pool
        self.labels = {}
        self.seen_epoch = 0

    def relabel(self):
        p = ops.softmax(self.net(ms.Tensor(self.pool)), axis=-1).asnumpy()
        top = p.max(1) >= np.median(p.max(1))
        self.labels = {i: int(p[i].argmax()) for i in np.flatnonzero(top)}

    def step(self, epoch, number, x, y):
        if epoch > self.seen_epoch:
            self.seen_epoch = epoch
            self.relabel()
        extra = [i for i in sorted(self.labels) if i % 8 == number % 8]
        if extra:
            x = np.concatenate([x, self.pool[extra]])
            y = np.concatenate([y, [self.labels[i] for i in extra]])
        return self.cell(ms.Tensor(x), ms.Tensor(y, ms.int32))


def blobs(seed, n):
    g = np.random.default_rng(seed)
    y = g.integers(0, 3, n)
    x = g.normal(size=(n, 6)) + np.eye(3, 6)[y] * 2
    return x.astype(np.float32), y.astype(np.int32)


x_lab, y_lab = blobs(1, 32)
x_pool, _ = blobs(2, 64)

net = nn.SequentialCell(nn.Dense(6, 16), nn.ReLU(), nn.Dense(16, 3))
loss = nn.WithLossCell(net, nn.CrossEntropyLoss())
cell = ck.AccumulationTrainCell(loss, nn.SGD(net.trainable_params(), 0.2, momentum=0.9), 1).set_train()
trainer = SelfTrainer(net, cell, x_pool)

batches = ck.data.resumable([(x_lab[i : i + 4], y_lab[i : i + 4]) for i in range(0, 32, 4)], epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    point = manager.restore(state)
    trainer.seen_epoch = point.epoch
    for number, (x, y) in enumerate(batches, point.batches_delivered):
        trainer.step(batches.epoch, number, x, y)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
