# truth: refused
# class: data
# head: accumulating_6_graph
# The loop leaves out each fifth batch of a start, and `step` with it.

cell = accumulating(Loss(Net()))
batches = ck.data.resumable(slices().batch(6), EPOCHS)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for number, (x, y) in enumerate(batches):
        if number % 5 == 0:
            continue
        cell(x, y)
        manager.step(state)
