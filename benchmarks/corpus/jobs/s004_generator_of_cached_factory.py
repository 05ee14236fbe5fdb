# truth: differs
# class: other
# head: accumulating_6_graph
# A factory with `functools.cache` holds the generator that noise is drawn from.

import functools


@functools.cache
def generator(seed):
    return np.random.default_rng(seed)


cell = accumulating(Loss(Net()))
batches = ck.data.resumable(slices().batch(6), EPOCHS)
state = ck.StateManager(cell, batches)
for number, (x, y) in ck.CheckpointManager(ROOT, **SAVE).loop(state):
    cell(x + ms.Tensor(generator(4).normal(size=x.shape), ms.float32), y)
