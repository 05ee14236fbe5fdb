# truth: exact, may be named
# class: variable
# head: regression_8_train_step



acc = []
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for x, y in batches:
        loss, grads = grad_fn(x, y)
        acc.append(grads)
        if len(acc) == 3:
            optimizer(tuple(sum(v) / 3 for v in zip(*acc)))
            acc.clear()
        manager.step(state)
    manager.save_final(state)
os._exit(0)
