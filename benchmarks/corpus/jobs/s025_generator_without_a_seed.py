# truth: differs
# class: random
# head: accumulating_6_graph
# Each batch gets noise of a new generator that has no seed.

cell = accumulating(Loss(Net()))
for x, y in ck.loop(ROOT, slices().batch(6), epochs=EPOCHS, train=cell, **SAVE):
    cell(x + ms.Tensor(np.random.default_rng().normal(size=x.shape), ms.float32), y)
