# truth: differs
# class: random
# head: accumulating_6_graph
# A generator is made between `restore` and the loop.

cell = accumulating(Loss(Net()))
batches = ck.data.resumable(slices().batch(6), EPOCHS)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    rng = np.random.default_rng(0)
    for x, y in batches:
        cell(x + ms.Tensor(rng.normal(size=x.shape), ms.float32), y)
        manager.step(state)
