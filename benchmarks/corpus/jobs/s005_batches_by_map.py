# truth: differs
# class: closure
# head: accumulating_6_graph
# `map` goes through the batches; the function that it calls keeps the best loss.

def train():
    cell = accumulating(Loss(Net()))
    batches = ck.data.resumable(slices().batch(6), EPOCHS)
    best = 9.0
    with ck.CheckpointManager(ROOT, **SAVE) as manager:
        state = ck.StateManager(cell, batches)
        manager.restore(state)

        def train_one(batch):
            nonlocal best
            x, y = batch
            loss = float(cell(x / (1 + best), y))
            best = min(best, loss)
            manager.step(state)
            return loss

        print(sum(map(train_one, batches)))


train()
