# truth: exact, may be named
# class: attribute
# head: regression_6_grad_fn



class Guard:
    def __init__(self, net, path="best.ckpt"):
        self.net, self.path, self.best = net, path, float("inf")

    def check(self, loss):
        if loss < self.best:
            self.best = loss
            ms.save_checkpoint(self.net, self.path)
        elif loss > 4 * self.best:
            for name, value in ms.load_checkpoint(self.path).items():
                ops.assign(self.net.parameters_dict()[name], value)


guard = Guard(net)
batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x, y in batches:
        loss, grads = grad_fn(x, y)
        opt(grads)
        guard.check(float(loss))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
