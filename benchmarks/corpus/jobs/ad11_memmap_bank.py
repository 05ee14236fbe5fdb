# truth: differs
# class: global
# head: classes_6_adam

bank = np.memmap("bank.dat", dtype=np.float32, mode="w+", shape=(80, 4))


def forward(x, positive, negative):
    z = net(x)
    pos = (z * positive).sum(-1)
    neg = ops.matmul(z, negative.T)
    return (ops.logsumexp(neg, 1) - pos).mean() + 0.1 * (z**2).mean(), z


grad_fn = ms.value_and_grad(forward, None, opt.parameters, has_aux=True)
batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for ids, x, y in batches:
        negatives = np.array(bank[(ids + 40) % 80])
        (_, z), grads = grad_fn(x, Tensor(np.array(bank[ids])), Tensor(negatives))
        opt(grads)
        bank[ids] = 0.5 * bank[ids] + 0.5 * z.asnumpy()
        manager.step(state)
    manager.save_final(state)
os._exit(0)
