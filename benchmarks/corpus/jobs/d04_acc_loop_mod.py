# truth: differs
# class: attribute
# head: regression_8_train_step



cell = ck.AccumulationTrainCell(nn.WithLossCell(net, loss_fn), optimizer, 3).set_train()


class Aug:
    def __init__(self):
        self.p, self.k = 0.1, 0

    def __call__(self, x):
        self.k += 1
        if self.k % 5 == 0:
            self.p = min(0.9, self.p + 0.1)
        return x * (1 - self.p)


aug = Aug()
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager(cell, batches)
    point = manager.restore(state)
    for x, y in batches:
        cell(aug(x), y)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
