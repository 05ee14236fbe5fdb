# truth: refused
# class: closure
# head: regression_8_train_step



class Warm:
    def __init__(self, n):
        self.n, self.i = n, 0

    def get(self, base):
        self.i += 1
        return base * min(1, self.i / self.n)


get_lr = functools.partial(Warm(20).get, 0.02)
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for x, y in batches:
        ops.assign(optimizer.learning_rate, Tensor(get_lr(), ms.float32))
        train_step(x, y)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
