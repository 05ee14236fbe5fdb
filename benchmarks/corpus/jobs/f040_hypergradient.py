# truth: differs
# class: closure
# head: imports
# Hypergradient descent (Baydin et al.): the rate follows the product of successive gradients, both held by a closure.


ms.set_seed(29)


def make_hd_step(net, loss_fn, lr0=0.02, beta=1e-3):
    params = net.trainable_params()
    opt = nn.SGD(params, learning_rate=1.0)
    vg = ms.value_and_grad(lambda x, y: loss_fn(net(x), y), None, params)
    lr, previous = lr0, None

    def step(x, y):
        nonlocal lr, previous
        loss, grads = vg(x, y)
        flat = np.concatenate([g.asnumpy().ravel() for g in grads])
        if previous is not None:
            lr = float(np.clip(lr + beta * flat @ previous, 1e-3, 0.2))
        previous = flat
        opt(tuple(g * lr for g in grads))
        return loss

    return step, opt


def toy(n, seed=29):
    r = np.random.RandomState(seed)
    for _ in range(n):
        x = r.randn(8, 6).astype(np.float32)
        yield ms.Tensor(x), ms.Tensor(np.maximum(x[:, :2], x[:, 2:4]))


network = nn.SequentialCell(nn.Dense(6, 10), nn.ReLU(), nn.Dense(10, 2))
hd_step, sgd = make_hd_step(network, nn.MSELoss())

batches = ck.data.resumable(list(toy(8)), epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([network, sgd], batches)
    manager.restore(state)
    for batch in batches:
        loss = hd_step(*batch)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
