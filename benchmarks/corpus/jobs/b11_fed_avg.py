# truth: differs
# class: global
# head: regression_8_arrays

rows = [(Tensor(X[i * 8 : i * 8 + 8]), Tensor(Y[i * 8 : i * 8 + 8])) for i in range(8)]
loss_fn = nn.MSELoss()


def make():
    return nn.SequentialCell(nn.Dense(8, 4), nn.ReLU(), nn.Dense(4, 1))


server = make()
clients = [make() for _ in range(2)]
opts = [nn.SGD(c.trainable_params(), 0.05) for c in clients]


def broadcast():
    for c in clients:
        for p, q in zip(c.trainable_params(), server.trainable_params()):
            ops.assign(p, q.value())


gfs = [ms.value_and_grad(lambda x, y, c=c: loss_fn(c(x), y), None, o.parameters) for c, o in zip(clients, opts)]
broadcast()
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager(server, batches)
    point = manager.restore(state)
    for i, (x, y) in enumerate(batches, point.batches_delivered):
        k = i % 2
        l, gr = gfs[k](x, y)
        opts[k](gr)
        if i % 4 == 3:
            for ps in zip(server.trainable_params(), *[c.trainable_params() for c in clients]):
                ops.assign(ps[0], sum(q.value() for q in ps[1:]) / 2)
            broadcast()
        manager.step(state)
    manager.save_final(state)
os._exit(0)
