# truth: differs
# class: iterator
# head: accumulating_6_graph
# `islice` ends training after 26 batches of a start, not of the whole training.

cell = accumulating(Loss(Net()))
batches = ck.data.resumable(slices().batch(6), EPOCHS)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for x, y in itertools.islice(batches, 26):
        cell(x, y)
        manager.step(state)
