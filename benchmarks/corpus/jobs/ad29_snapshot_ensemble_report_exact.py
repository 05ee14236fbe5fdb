# truth: exact
# class: variable
# head: regression_6_grad_fn


snapshots = []


def predict(weights, x):
    w1, b1, w2, b2 = weights
    return np.tanh(x @ w1.T + b1) @ w2.T + b2


batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, opt], batches)
    point = manager.restore(state)
    for step, (x, y) in enumerate(batches, point.batches_delivered):
        rate = 0.05 * (1 + np.cos(np.pi * (step % 6) / 6)) / 2
        ops.assign(opt.learning_rate, Tensor(rate, ms.float32))
        loss, grads = grad_fn(x, y)
        opt(grads)
        if step % 6 == 5:
            snapshots.append([p.asnumpy().copy() for p in net.trainable_params()])
        manager.step(state)
    manager.save_final(state)
error = np.mean([((predict(w, X) - Y) ** 2).mean() for w in snapshots])
print("mean error of the snapshots", error)
os._exit(0)
