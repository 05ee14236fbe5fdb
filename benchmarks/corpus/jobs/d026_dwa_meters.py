# truth: differs
# class: attribute
# head: regression_8_make_batches
# dynamic weight averaging: the AverageMeters hold the losses of the last steps, whose ratio gives the task weights



class AverageMeter:
    def __init__(self, name, decay=0.5):
        self.name, self.decay = name, decay
        self.val, self.avg, self.prev, self.count = 0.0, 0.0, 0.0, 0

    def __iadd__(self, value):
        self.val, self.prev = value, self.avg
        self.avg = value if self.count == 0 else self.decay * self.avg + (1 - self.decay) * value
        self.count += 1
        return self

    @property
    def ratio(self):
        return self.avg / self.prev if self.count > 1 else 1.0


class DWA:
    def __init__(self, tasks, temperature=0.7):
        self.meters = {t: AverageMeter(t) for t in tasks}
        self.temperature = temperature

    def weights(self):
        e = np.exp(np.array([m.ratio for m in self.meters.values()]) / self.temperature)
        return (len(e) * e / e.sum()).tolist()

    def update(self, **losses):
        for task, value in losses.items():
            self.meters[task] += float(value.asnumpy())


net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
loss_fn = nn.MSELoss()
optimizer = nn.Adam(net.trainable_params(), 0.02)


def forward_fn(x, y, a, b):
    out = net(x)
    square, mirror = loss_fn(out, y), ops.relu(net(-x) + out).mean()
    return a * square + b * mirror, square, mirror


grad_fn = ms.value_and_grad(forward_fn, None, optimizer.parameters, has_aux=True)
dwa = DWA(("square", "mirror"))
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    manager.restore(state)
    for x, y in batches:
        (_, square, mirror), grads = grad_fn(x, y, *dwa.weights())
        optimizer(grads)
        dwa.update(square=square, mirror=mirror + 0.01)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
