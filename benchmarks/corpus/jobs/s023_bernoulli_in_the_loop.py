# truth: differs
# class: random
# head: accumulating_6_pynative
# The loop masks inputs by `ops.bernoulli`.

cell = accumulating(Loss(Net()))
for x, y in ck.loop(ROOT, slices().batch(6), epochs=EPOCHS, train=cell, **SAVE):
    cell(x * ops.bernoulli(ops.ones_like(x), 0.7), y)
