# truth: exact
# class: variable
# head: classes_6_rows


A = nn.SequentialCell(nn.Dense(6, 8), nn.ReLU(), nn.Dense(8, 4))
B = nn.SequentialCell(nn.Dense(6, 8), nn.ReLU(), nn.Dense(8, 4))
A.update_parameters_name("a.")
B.update_parameters_name("b.")
opt_a, opt_b = nn.Adam(A.trainable_params(), 0.01), nn.Adam(B.trainable_params(), 0.01)


def keep(net, x, y, rate):
    logp = ops.log_softmax(net(x), -1).asnumpy()
    order = np.argsort(-logp[np.arange(8), y.asnumpy()].round(4), kind="stable")
    return Tensor(order[: int(8 * (1 - rate))].astype(np.int32))


ga = ms.value_and_grad(lambda x, y: ops.cross_entropy(A(x), y), None, opt_a.parameters)
gb = ms.value_and_grad(lambda x, y: ops.cross_entropy(B(x), y), None, opt_b.parameters)
batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([A, B, opt_a], batches, opt_b=opt_b)
    manager.restore(state)
    for x, y in batches:
        rate = 0.25 * min(1.0, batches.epoch / 2)
        for_b, for_a = keep(A, x, y, rate), keep(B, x, y, rate)
        _, grads = ga(x[for_a], y[for_a])
        opt_a(grads)
        _, grads = gb(x[for_b], y[for_b])
        opt_b(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
