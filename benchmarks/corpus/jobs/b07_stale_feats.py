# truth: differs
# class: global
# head: regression_8_train_step



cache = {}


def features(i, x):
    if i not in cache:
        cache[i] = ops.stop_gradient(net(x))
    return cache[i]


batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for i, (x, y) in enumerate(batches, point.batches_delivered):
        train_step(x, y + 0.1 * features(i % 8, x))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
