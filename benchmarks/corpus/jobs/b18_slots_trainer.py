# truth: differs
# class: attribute
# head: regression_8_train_step



class SlotState:
    __slots__ = ("beta", "t", "m")

    def __init__(self):
        self.beta, self.t, self.m = 0.9, 0, 0.0


class Trainer:
    def __init__(self):
        self.s = SlotState()

    def scale(self, grads):
        n = float(sum((v * v).sum() for v in grads))
        self.s.t += 1
        self.s.m = self.s.beta * self.s.m + (1 - self.s.beta) * n
        return tuple(v / (1e-3 + self.s.m**0.5) for v in grads)


tr = Trainer()
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for x, y in batches:
        loss, grads = grad_fn(x, y)
        optimizer(tr.scale(grads))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
