# truth: differs
# class: global
# head: regression_8_train_step



labels = Y.copy()
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for i, (x, y) in enumerate(batches, point.batches_delivered):
        k = i % 8
        train_step(x, Tensor(labels[k * 8 : k * 8 + 8]))
        labels[k * 8 : k * 8 + 8] = 0.8 * labels[k * 8 : k * 8 + 8] + 0.2 * net(x).asnumpy()
        manager.step(state)
    manager.save_final(state)
os._exit(0)
