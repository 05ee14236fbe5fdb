# truth: differs
# class: attribute
# head: regression_8_train_step



class Lookahead:
    def __init__(self, opt, k=6, alpha=0.5):
        self.opt, self.k, self.alpha = opt, k, alpha
        self.slow = [p.value().copy() for p in opt.parameters]
        self.count = 0

    def __call__(self, grads):
        self.opt(grads)
        self.count += 1
        if self.count % self.k == 0:
            for i, p in enumerate(self.opt.parameters):
                self.slow[i] = self.slow[i] + self.alpha * (p.value() - self.slow[i])
                ops.assign(p, self.slow[i])


look = Lookahead(optimizer)
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for x, y in batches:
        loss, grads = grad_fn(x, y)
        look(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
