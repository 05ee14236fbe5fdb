# truth: differs
# class: random
# head: accumulating_6_pynative
# The loop masks inputs by `ops.bernoulli`.

cell = accumulating(Loss(Net()))
batches = ck.data.resumable(slices().batch(6), EPOCHS)
state = ck.StateManager(cell, batches)
for number, (x, y) in ck.CheckpointManager(ROOT, **SAVE).loop(state):
    cell(x * ops.bernoulli(ops.ones_like(x), 0.7), y)
