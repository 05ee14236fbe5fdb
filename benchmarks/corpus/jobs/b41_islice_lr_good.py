# truth: exact
# class: variable
# head: regression_8_train_step



lrs = np.linspace(0.001, 0.02, 24)
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for (x, y), lr in zip(batches, lrs[point.batches_delivered :]):
        ops.assign(optimizer.learning_rate, Tensor(float(lr), ms.float32))
        train_step(x, y)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
