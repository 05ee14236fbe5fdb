# truth: exact
# class: variable
# head: imports_ops
# First-order MAML: the inner loop's adapted weights are temporary, tasks come from a list; nothing lasts beyond a step.


ms.set_seed(71)


def sine_task(k):
    r = np.random.RandomState(k)
    amp, phase = r.uniform(0.5, 2), r.uniform(0, 3)
    x = r.uniform(-2, 2, (12, 1)).astype(np.float32)
    y = (amp * np.sin(x + phase)).astype(np.float32)
    return [ms.Tensor(v) for v in (x[:6], y[:6], x[6:], y[6:])]


net = nn.SequentialCell(nn.Dense(1, 12), nn.Tanh(), nn.Dense(12, 1))
weights = net.trainable_params()
meta = nn.Adam(weights, learning_rate=0.01)


def loss_of(x, y):
    return ops.square(net(x) - y).mean()


grad = ms.value_and_grad(loss_of, None, weights)


def meta_step(xs, ys, xq, yq, inner_lr=0.1, inner_steps=2):
    saved = [w.asnumpy().copy() for w in weights]
    try:
        for _ in range(inner_steps):
            _, gs = grad(xs, ys)
            for w, g in zip(weights, gs):
                ops.assign(w, w - inner_lr * g)
        loss, outer = grad(xq, yq)
    finally:
        for w, s in zip(weights, saved):
            ops.assign(w, ms.Tensor(s))
    meta(outer)
    return loss


tasks = ck.data.resumable([sine_task(k) for k in range(9)], epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, meta], tasks)
    manager.restore(state)
    for task in tasks:
        manager.fence()
        loss = meta_step(*task)
        manager.step(state, metrics={"loss": loss})
    manager.save_final(state)
os._exit(0)
