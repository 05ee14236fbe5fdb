# truth: differs
# class: variable
# head: regression_8_train_step



visits = np.zeros(8)
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for i, (x, y) in enumerate(batches, point.batches_delivered):
        train_step(x, y, float(1 / np.sqrt(1 + visits[i % 8])))
        visits[i % 8] += 1
        manager.step(state)
    manager.save_final(state)
os._exit(0)
