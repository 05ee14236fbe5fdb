# truth: exact
# class: random
# head: accumulating_6_graph
# SciPy draws from NumPy's global generator, which is stored.

from scipy import stats

cell = accumulating(Loss(Net()))
for x, y in ck.loop(ROOT, slices().batch(6), epochs=EPOCHS, train=cell, **SAVE):
    cell(x * float(stats.beta.rvs(0.4, 0.4)), y)
