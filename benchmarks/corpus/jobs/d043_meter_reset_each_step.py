# truth: exact
# class: attribute
# head: regression_8_make_batches
# the meter decides about the second pass over a batch, but is reset at the beginning of each step

net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
loss_fn = nn.MSELoss()
optimizer = nn.Momentum(net.trainable_params(), 0.02, 0.9)
grad_fn = ms.value_and_grad(lambda x, y, w: loss_fn(net(x), y) * w, None, optimizer.parameters)


def train_step(x, y, w=1.0):
    loss, grads = grad_fn(x, y, w)
    optimizer(grads)
    return loss


class Meter:
    def __init__(self):
        self.reset()

    def reset(self):
        self.sum, self.n, self.worst = 0.0, 0, 0.0

    def update(self, value):
        self.sum += value
        self.n += 1
        self.worst = max(self.worst, value)

    @property
    def avg(self):
        return self.sum / self.n


class TwoPassTrainer:
    parts, meter, worst_part = 4, Meter(), None

    def __call__(self, x, y):
        self.meter.reset()
        self.worst_part = None
        for px, py in zip(ops.split(x, 8 // self.parts), ops.split(y, 8 // self.parts)):
            value = float(loss_fn(net(px), py).asnumpy())
            if value >= self.meter.worst:
                self.worst_part = px, py
            self.meter.update(value)
        train_step(x, y)
        return train_step(*self.worst_part, self.meter.avg / (self.meter.worst + 1e-6))


trainer = TwoPassTrainer()
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    manager.restore(state)
    for x, y in batches:
        trainer(x, y)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
