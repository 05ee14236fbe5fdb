# truth: differs
# class: global
# head: regression_8_train_step



labelled = {0, 1}


def uncertainty(i):
    return float(net(rows[i][0]).std())


batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for i, (x, y) in enumerate(batches, point.batches_delivered):
        for j in sorted(labelled):
            train_step(*rows[j], 0.2)
        if i % 4 == 3:
            pool = [j for j in range(8) if j not in labelled]
            if pool:
                labelled.add(max(pool, key=uncertainty))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
