# truth: exact
# class: attribute
# head: imports_math_ops
# Cosine rate with warm restarts (SGDR), by an object of the loop: place and length of the running period are given by name with ck.attributes, and change before manager.step.


ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3521)


class WarmRestarts:
    def __init__(self, low, high, period, factor):
        self.low, self.high, self.factor = low, high, factor
        self.period, self.at = period, 0

    def rate(self):
        return self.low + (self.high - self.low) * (1 + math.cos(math.pi * self.at / self.period)) / 2

    def step(self):
        self.at += 1
        if self.at == self.period:
            self.at, self.period = 0, self.period * self.factor


r = np.random.RandomState(21)
rows = []
for _ in range(10):
    x = r.randn(6, 4).astype(np.float32)
    rows.append((ms.Tensor(x), ms.Tensor(np.cos(2 * x[:, :1]) + x[:, 3:], ms.float32)))
net = nn.SequentialCell(nn.Dense(4, 12), nn.Tanh(), nn.Dense(12, 1))
optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
mse = nn.MSELoss()
gradients = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())
schedule = WarmRestarts(0.001, 0.1, period=6, factor=2)

batches = ck.data.resumable(rows, epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, optimizer], batches, schedule=ck.attributes(schedule, "period", "at"))
    manager.restore(state)
    for x, y in batches:
        loss, grads = gradients(x, y)
        manager.fence()
        ops.assign(optimizer.learning_rate, ms.Tensor(schedule.rate(), ms.float32))
        optimizer(grads)
        schedule.step()
        manager.step(state)
    manager.save_final(state)
os._exit(0)
