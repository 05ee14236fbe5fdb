# truth: exact
# class: variable
# head: regression_8_train_step



cell = ck.AccumulationTrainCell(nn.WithLossCell(net, loss_fn), optimizer, 2, clip_norm=5.0).set_train()
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager(cell, batches)
    point = manager.restore(state)
    for x, y in batches:
        cell(x, y)
        if cell.updated:
            u = cell.counters.updates
            ops.assign(optimizer.learning_rate, Tensor(0.01 * 0.9**u, ms.float32))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
