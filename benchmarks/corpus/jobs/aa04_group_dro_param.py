# truth: exact
# class: attribute
# head: classes_6_rows

net = nn.SequentialCell(nn.Dense(6, 12), nn.ReLU(), nn.Dense(12, 4))

groups = ((X[:, 0] > 0).astype(np.int32) + 2 * (X[:, 1] > 0).astype(np.int32)).astype(np.int32)
loader = [(a, b, Tensor(groups[i * 8 : i * 8 + 8])) for i, (a, b) in enumerate(loader)]


class DROLoss(nn.Cell):
    def __init__(self, network, n, eta=0.3):
        super().__init__()
        self.network, self.n, self.eta = network, n, eta
        self.q = Parameter(ops.ones((n,), ms.float32) / n, name="q", requires_grad=False)

    def construct(self, x, y, group):
        logp = ops.log_softmax(self.network(x), -1)
        losses = -(logp * ops.one_hot(y, 4, Tensor(1.0), Tensor(0.0))).sum(-1)
        member = ops.one_hot(group, self.n, Tensor(1.0), Tensor(0.0))
        mean = (member * losses.expand_dims(-1)).sum(0) / ops.maximum(member.sum(0), Tensor(1.0))
        q = self.q * ops.exp(self.eta * ops.stop_gradient(mean))
        q = q / q.sum()
        ops.assign(self.q, q)
        return (ops.stop_gradient(q) * mean).sum()


cell = DROLoss(net, 4)
opt = nn.Momentum(net.trainable_params(), 0.05, 0.9)
train_cell = nn.TrainOneStepCell(cell, opt).set_train()
batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager(train_cell, batches)
    manager.restore(state)
    for x, y, group in batches:
        train_cell(x, y, group)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
