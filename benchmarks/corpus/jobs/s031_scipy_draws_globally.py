# truth: exact
# class: random
# head: accumulating_6_graph
# SciPy draws from NumPy's global generator, which is stored.

from scipy import stats

cell = accumulating(Loss(Net()))
batches = ck.data.resumable(slices().batch(6), EPOCHS)
state = ck.StateManager(cell, batches)
for number, (x, y) in ck.CheckpointManager(ROOT, **SAVE).loop(state):
    cell(x * float(stats.beta.rvs(0.4, 0.4)), y)
