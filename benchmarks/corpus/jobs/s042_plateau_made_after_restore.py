# truth: differs
# class: attribute
# head: accumulating_6_pynative
# An object that lowers the rate is made between `restore` and the loop.

class Plateau:
    def __init__(self, patience):
        self.patience, self.best, self.bad = patience, 9.0, 0

    def step(self, value):
        self.bad = 0 if value < self.best - 0.3 else self.bad + 1
        self.best = min(value, self.best)
        return self.bad % self.patience == 0


cell = accumulating(Loss(Net()))
batches = ck.data.resumable(slices().batch(6), EPOCHS)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    plateau = Plateau(patience=4)
    for x, y in batches:
        if plateau.step(float(cell(x, y))):
            ops.assign(cell.optimizer.learning_rate, cell.optimizer.learning_rate * 0.5)
        manager.step(state)
