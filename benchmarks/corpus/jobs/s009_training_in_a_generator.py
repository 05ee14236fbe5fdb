# truth: differs
# class: variable
# head: accumulating_6_graph
# A generator trains; the loop over what it yields keeps a factor of the rate.

def trained(batches, cell):
    for x, y in batches:
        yield float(cell(x, y))


def train():
    cell = accumulating(Loss(Net()))
    batches = ck.data.resumable(slices().batch(6), EPOCHS)
    factor = 1.0
    with ck.CheckpointManager(ROOT, **SAVE) as manager:
        state = ck.StateManager(cell, batches)
        manager.restore(state)
        for loss in trained(batches, cell):
            factor *= 0.9 if loss < 1.2 else 1.1
            cell.optimizer.learning_rate.set_data(ms.Tensor(0.01 * factor, ms.float32))
            manager.step(state)


train()
