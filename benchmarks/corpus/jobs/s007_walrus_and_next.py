# truth: exact
# class: iterator
# head: accumulating_6_pynative
# `while` and `next` go through the batches.

cell = accumulating(Loss(Net()))
batches = ck.data.resumable(slices().batch(6), EPOCHS)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    iterator = iter(batches)
    while (batch := next(iterator, None)) is not None:
        cell(*batch)
        manager.step(state)
