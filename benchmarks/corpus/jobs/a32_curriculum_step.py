# truth: exact
# class: variable
# head: regression_8_train_step



batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for i, (x, y) in enumerate(batches, point.batches_delivered):
        keep = 2 + min(6, i // 3)
        mask = np.zeros((8, 1), np.float32)
        mask[np.argsort(np.abs(Y[i % 8 * 8 : i % 8 * 8 + 8, 0]))[:keep]] = 1
        train_step(x * Tensor(mask), y * Tensor(mask))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
