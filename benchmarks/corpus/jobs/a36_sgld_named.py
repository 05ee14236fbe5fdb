# truth: exact
# class: random
# head: regression_8_train_step



rng = np.random.default_rng(7)
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches, rng=rng)
    point = manager.restore(state)
    for x, y in batches:
        loss, grads = grad_fn(x, y)
        optimizer(tuple(v + Tensor((rng.normal(size=v.shape) * 0.01).astype(np.float32)) for v in grads))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
