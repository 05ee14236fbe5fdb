# truth: differs
# class: other
# head: accumulating_6_graph
# Inputs are halved until a semaphore has no permits any more; each start has all of them.

budget = threading.Semaphore(12)
cell = accumulating(Loss(Net()))
for x, y in ck.loop(ROOT, slices().batch(6), epochs=EPOCHS, train=cell, **SAVE):
    cell(x * 0.5 if budget.acquire(blocking=False) else x, y)
