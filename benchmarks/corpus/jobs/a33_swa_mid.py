# truth: differs
# class: variable
# head: regression_8_train_step



swa, n = None, 0
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for i, (x, y) in enumerate(batches, point.batches_delivered + 1):
        train_step(x, y)
        if i >= 8:
            w = [p.asnumpy().copy() for p in net.trainable_params()]
            swa = w if swa is None else [(a * n + b) / (n + 1) for a, b in zip(swa, w)]
            n += 1
        if i == 20:
            for p, a in zip(net.trainable_params(), swa):
                ops.assign(p, Tensor(a))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
