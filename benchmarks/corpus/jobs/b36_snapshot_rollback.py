# truth: exact, may be named
# class: variable
# head: regression_8_train_step



best, best_w = float("inf"), None
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for x, y in batches:
        loss = float(train_step(x, y))
        if loss < best:
            best, best_w = loss, [p.value().copy() for p in net.trainable_params()]
        elif loss > 2 * best:
            for p, w in zip(net.trainable_params(), best_w):
                ops.assign(p, w)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
