# truth: differs
# class: random
# head: accumulating_6_graph
# SciPy draws from a generator of the script.

from scipy import stats

rng = np.random.default_rng(0)
cell = accumulating(Loss(Net()))
batches = ck.data.resumable(slices().batch(6), EPOCHS)
state = ck.StateManager(cell, batches)
for number, (x, y) in ck.CheckpointManager(ROOT, **SAVE).loop(state):
    cell(x * float(stats.beta.rvs(0.4, 0.4, random_state=rng)), y)
