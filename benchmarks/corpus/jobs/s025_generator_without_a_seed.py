# truth: differs
# class: random
# head: accumulating_6_graph
# Each batch gets noise of a new generator that has no seed.

cell = accumulating(Loss(Net()))
batches = ck.data.resumable(slices().batch(6), EPOCHS)
state = ck.StateManager(cell, batches)
for number, (x, y) in ck.CheckpointManager(ROOT, **SAVE).loop(state):
    cell(x + ms.Tensor(np.random.default_rng().normal(size=x.shape), ms.float32), y)
