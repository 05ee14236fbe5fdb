# truth: exact
# class: random
# head: regression_8_train_step



batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for x, y in batches:
        train_step(x + 0.1 * ops.randn(8, 8), y)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
