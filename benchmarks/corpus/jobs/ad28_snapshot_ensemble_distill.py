# truth: differs
# class: global
# head: regression_6_rows

net = nn.SequentialCell(nn.Dense(6, 12), nn.Tanh(), nn.Dense(12, 1))
loss_fn = nn.MSELoss()
opt = nn.Momentum(net.trainable_params(), 0.03, 0.9)
grad_fn = ms.value_and_grad(lambda x, y, t: loss_fn(net(x), y) + 0.3 * loss_fn(net(x), t), None, opt.parameters)

snapshots = []


def predict(weights, x):
    w1, b1, w2, b2 = weights
    return np.tanh(x @ w1.T + b1) @ w2.T + b2


def teacher(x, y):
    if not snapshots:
        return y
    votes = [predict(w, x.asnumpy()) for w in snapshots]
    return Tensor(np.mean(votes, axis=0).astype(np.float32))


batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, opt], batches)
    point = manager.restore(state)
    for step, (x, y) in enumerate(batches, point.batches_delivered):
        rate = 0.05 * (1 + np.cos(np.pi * (step % 6) / 6)) / 2
        ops.assign(opt.learning_rate, Tensor(rate, ms.float32))
        loss, grads = grad_fn(x, y, teacher(x, y))
        opt(grads)
        if step % 6 == 5:
            snapshots.append([p.asnumpy().copy() for p in net.trainable_params()])
        manager.step(state)
    manager.save_final(state)
os._exit(0)
