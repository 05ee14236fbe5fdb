# truth: exact
# class: random
# head: regression_6_grad_fn



class DPOptimizer:
    def __init__(self, optimizer, clip, sigma):
        self.optimizer, self.clip, self.sigma = optimizer, clip, sigma

    def privatize(self, grads):
        grads = ops.clip_by_global_norm(grads, self.clip)
        return tuple(g + self.sigma * self.clip * ops.randn(*g.shape) for g in grads)

    def step(self, grads):
        return self.optimizer(self.privatize(grads))


dp = DPOptimizer(opt, 1.0, 0.05)
batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x, y in batches:
        loss, grads = grad_fn(x, y)
        dp.step(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
