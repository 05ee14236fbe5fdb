# truth: differs
# class: iterator
# head: regression_8_train_step



lrs = itertools.chain(np.linspace(0.001, 0.02, 10), itertools.repeat(0.02))
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for (x, y), lr in zip(batches, lrs):
        ops.assign(optimizer.learning_rate, Tensor(float(lr), ms.float32))
        train_step(x, y)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
