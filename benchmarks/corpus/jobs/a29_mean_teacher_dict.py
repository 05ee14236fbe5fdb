# truth: differs
# class: attribute
# head: regression_8_train_step



class EMA:
    def __init__(self, model, decay):
        self.decay = decay
        self.shadow = {p.name: p.asnumpy().copy() for p in model.trainable_params()}

    def update(self, model):
        for p in model.trainable_params():
            self.shadow[p.name] = self.decay * self.shadow[p.name] + (1 - self.decay) * p.asnumpy()

    @contextlib.contextmanager
    def applied(self, model):
        backup = {p.name: p.asnumpy().copy() for p in model.trainable_params()}
        for p in model.trainable_params():
            ops.assign(p, Tensor(self.shadow[p.name]))
        yield
        for p in model.trainable_params():
            ops.assign(p, Tensor(backup[p.name]))


ema = EMA(net, 0.9)
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for x, y in batches:
        with ema.applied(net):
            soft = ops.stop_gradient(net(x)).copy()
        train_step(x, 0.7 * y + 0.3 * soft)
        ema.update(net)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
