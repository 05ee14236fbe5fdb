# truth: differs
# class: other
# head: accumulating_6_graph
# A factory with `functools.cache` holds the generator that noise is drawn from.

import functools


@functools.cache
def generator(seed):
    return np.random.default_rng(seed)


cell = accumulating(Loss(Net()))
for x, y in ck.loop(ROOT, slices().batch(6), epochs=EPOCHS, train=cell, **SAVE):
    cell(x + ms.Tensor(generator(4).normal(size=x.shape), ms.float32), y)
