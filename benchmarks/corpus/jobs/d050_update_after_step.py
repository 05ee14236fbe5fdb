# truth: differs
# class: variable
# head: regression_8_make_batches
# the threshold is given by name, but it is updated after manager.step, so each checkpoint has it one batch too old

net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
loss_fn = nn.MSELoss()
optimizer = nn.Momentum(net.trainable_params(), 0.03, 0.9)


def forward_fn(x, y, limit):
    error = ops.abs(net(x) - y)
    return ops.where(error < limit, 0.5 * error**2, limit * (error - 0.5 * limit)).mean(), error


grad_fn = ms.value_and_grad(forward_fn, None, optimizer.parameters, has_aux=True)


class HuberThreshold:
    def __init__(self, start=1.0, quantile=0.6):
        self.limit, self.quantile = start, quantile

    def update(self, errors):
        self.limit += 0.3 * (float(np.quantile(errors, self.quantile)) - self.limit)


class Loop:
    def __init__(self, manager, state, threshold):
        self.manager, self.state, self.threshold = manager, state, threshold

    def run(self, batches):
        for x, y in batches:
            (loss, error), grads = grad_fn(x, y, self.threshold.limit)
            optimizer(grads)
            self.on_batch_end(error)

    def on_batch_end(self, error):
        self.manager.step(self.state)
        self.threshold.update(error.asnumpy())


threshold = HuberThreshold()
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches, threshold=ck.attributes(threshold, "limit"))
    manager.restore(state)
    Loop(manager, state, threshold).run(batches)
    manager.save_final(state)
os._exit(0)
