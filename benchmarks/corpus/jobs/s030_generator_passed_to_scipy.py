# truth: differs
# class: random
# head: accumulating_6_graph
# SciPy draws from a generator of the script.

from scipy import stats

rng = np.random.default_rng(0)
cell = accumulating(Loss(Net()))
for x, y in ck.loop(ROOT, slices().batch(6), epochs=EPOCHS, train=cell, **SAVE):
    cell(x * float(stats.beta.rvs(0.4, 0.4, random_state=rng)), y)
