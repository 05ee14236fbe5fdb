# truth: differs
# class: attribute
# head: regression_8_train_step



class EarlyStop:
    def __init__(self, patience):
        self.patience, self.best, self.wait = patience, None, 0

    def should_stop(self, v):
        if self.best is None or v < self.best:
            self.best, self.wait = v, 0
        else:
            self.wait += 1
        return self.wait >= self.patience


stopper = EarlyStop(3)
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for x, y in batches:
        loss = float(train_step(x, y))
        if stopper.should_stop(loss):
            ops.assign(optimizer.learning_rate, optimizer.learning_rate * 0.5)
            stopper.wait = 0
        manager.step(state)
    manager.save_final(state)
os._exit(0)
