# truth: refused
# class: variable
# head: regression_8_train_step



inner = 3
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    start = None
    for i, (x, y) in enumerate(batches, point.batches_delivered):
        if i % inner == 0:
            start = [p.value().copy() for p in net.trainable_params()]
        train_step(x, y)
        if i % inner == inner - 1:
            for p, s in zip(net.trainable_params(), start):
                ops.assign(p, s + 0.5 * (p.value() - s))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
