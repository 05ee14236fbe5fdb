# truth: differs
# class: attribute
# head: regression_8_train_step



class KLAnneal:
    def __init__(self, n):
        self.betas = iter(np.linspace(0, 1, n))
        self.beta = 0.0

    def step(self):
        self.beta = float(next(self.betas, 1.0))


kl = KLAnneal(30)
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for x, y in batches:
        kl.step()
        loss, grads = grad_fn(x, y)
        optimizer(tuple(v + kl.beta * 0.1 * p for v, p in zip(grads, optimizer.parameters)))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
