# truth: exact
# class: variable
# head: regression_8_train_step



batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    n = point.batches_delivered
    for x, y in batches:
        epoch = n // 8
        n += 1
        train_step(x, y, [1.0, 0.5, 0.25][epoch])
        manager.step(state)
    manager.save_final(state)
os._exit(0)
