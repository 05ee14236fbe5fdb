# truth: exact
# class: variable
# head: regression_8_train_step



batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for x, y in batches:
        lam = np.random.beta(0.4, 0.4)
        idx = np.random.permutation(8)
        xs, ys = x.asnumpy(), y.asnumpy()
        train_step(
            Tensor((lam * xs + (1 - lam) * xs[idx]).astype(np.float32)),
            Tensor((lam * ys + (1 - lam) * ys[idx]).astype(np.float32)),
        )
        manager.step(state)
    manager.save_final(state)
os._exit(0)
