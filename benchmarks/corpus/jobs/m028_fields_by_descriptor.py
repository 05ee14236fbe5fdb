# truth: exact
# class: attribute
# head: pynative
# Fields declare themselves with __set_name__, as in an ORM; state_dict collects those of all base classes, values lie in the instance under private names.

ms.set_seed(4328)


class Field:
    def __init__(self, default):
        self.default = default

    def __set_name__(self, owner, name):
        self.slot = f"_{name}"
        owner.FIELDS = {**getattr(owner, "FIELDS", {}), name: self}

    def __get__(self, instance, owner=None):
        return self if instance is None else instance.__dict__.get(self.slot, self.default)

    def __set__(self, instance, value):
        instance.__dict__[self.slot] = type(self.default)(value)


class Model:
    def state_dict(self):
        return {name: getattr(self, name) for name in self.FIELDS}

    def load_state_dict(self, state):
        for name in self.FIELDS:
            setattr(self, name, state[name])


class Level(Model):
    level = Field(0.0)
    seen = Field(0)

    def observe(self, value):
        self.seen += 1
        self.level += max(0.15, 1 / self.seen) * (value - self.level)


class Trend(Level):
    slope = Field(0.0)
    alarm = Field(False)

    def observe(self, value):
        before = self.level
        super().observe(value)
        self.slope = 0.8 * self.slope + 0.2 * (self.level - before)
        self.alarm = value > 1.5 * self.level

    def weight(self):
        return (0.3 if self.alarm else 1.0) / (1 + abs(self.slope))


class Weighted(nn.Cell):
    def __init__(self, body):
        super().__init__()
        self.body = body

    def construct(self, x, y, weight):
        return weight * ((self.body(x) - y) ** 2).mean()


r = np.random.RandomState(28)
rows = []
for i in range(8):
    x = r.randn(8, 4).astype(np.float32)
    rows.append((ms.Tensor(x), ms.Tensor((x[:, :1] * (1 + i % 4)).astype(np.float32))))
net = Weighted(nn.SequentialCell(nn.Dense(4, 6), nn.Tanh(), nn.Dense(6, 1)))
cell = ck.AccumulationTrainCell(net, nn.Momentum(net.trainable_params(), 0.03, 0.9), accumulation_steps=1).set_train()
trend = Trend()

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches, trend=trend)
    manager.restore(state)
    for x, y in batches:
        weight = trend.weight()
        loss = cell(x, y, ms.Tensor(weight, ms.float32))
        trend.observe(float(loss.asnumpy()) / weight)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
