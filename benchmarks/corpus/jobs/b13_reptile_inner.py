# truth: refused or exact
# class: variable
# head: regression_8_train_step



batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for x, y in batches:
        start = [p.value().copy() for p in net.trainable_params()]
        for _ in range(3):
            train_step(x, y)
        for p, s in zip(net.trainable_params(), start):
            ops.assign(p, s + 0.5 * (p.value() - s))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
