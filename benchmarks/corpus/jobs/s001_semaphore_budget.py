# truth: differs
# class: other
# head: accumulating_6_graph
# Inputs are halved until a semaphore has no permits any more; each start has all of them.

budget = threading.Semaphore(12)
cell = accumulating(Loss(Net()))
batches = ck.data.resumable(slices().batch(6), EPOCHS)
state = ck.StateManager(cell, batches)
for number, (x, y) in ck.CheckpointManager(ROOT, **SAVE).loop(state):
    cell(x * 0.5 if budget.acquire(blocking=False) else x, y)
