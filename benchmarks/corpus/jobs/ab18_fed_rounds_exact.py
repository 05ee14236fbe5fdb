# truth: exact
# class: variable
# head: regression_6_rows

net = nn.SequentialCell(nn.Dense(6, 12), nn.Tanh(), nn.Dense(12, 1))

clients = [(X[i : i + 20], Y[i : i + 20]) for i in range(0, 80, 20)]
loss_fn = nn.MSELoss()
opt = nn.SGD(net.trainable_params(), 0.05)
grad_fn = ms.value_and_grad(lambda x, y: loss_fn(net(x), y), None, opt.parameters)


def weights():
    return [p.asnumpy().copy() for p in net.trainable_params()]


def load(values):
    for p, v in zip(net.trainable_params(), values):
        ops.assign(p, Tensor(v))


def local_train(client, before):
    load(before)
    x, y = clients[client]
    for i in range(0, 20, 10):
        _, grads = grad_fn(Tensor(x[i : i + 10]), Tensor(y[i : i + 10]))
        opt(grads)
    return weights()


rounds = ck.data.resumable([np.random.default_rng(r).choice(4, 2, replace=False) for r in range(25)], epochs=1)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, opt], rounds)
    manager.restore(state)
    for chosen in rounds:
        before = weights()
        updates = [local_train(int(c), before) for c in chosen]
        load([np.mean(group, axis=0) for group in zip(*updates)])
        manager.step(state)
    manager.save_final(state)
os._exit(0)
