# truth: exact, may be named
# class: attribute
# head: imports_math_ops
# A scheduler with warm restarts counts by itself; after the restore it is stepped once for every batch that was delivered before, and depends on nothing else. GRAPH, K = 2.


ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(4424)


class WarmRestarts:
    def __init__(self, base, period, growth):
        self.base, self.period, self.growth = base, period, growth
        self.position = 0
        self.restarts = 0
        self.last_rate = base

    def step(self):
        self.last_rate = self.base * 0.9**self.restarts * 0.5 * (1 + math.cos(math.pi * self.position / self.period))
        self.position += 1
        if self.position >= self.period:
            self.position = 0
            self.period = math.ceil(self.period * self.growth)
            self.restarts += 1
        return self.last_rate


r = np.random.RandomState(24)
rows = []
for _ in range(10):
    x = r.randn(6, 5).astype(np.float32)
    rows.append((ms.Tensor(x), ms.Tensor((np.abs(x[:, :1]) - x[:, 1:2]).astype(np.float32))))
net = nn.SequentialCell(nn.Dense(5, 8), nn.Tanh(), nn.Dense(8, 1))
loss = nn.WithLossCell(net, nn.MSELoss())
opt = nn.Momentum(loss.trainable_params(), 0.06, 0.9)
cell = ck.AccumulationTrainCell(loss, opt, accumulation_steps=2).set_train()
scheduler = WarmRestarts(0.06, period=4, growth=1.5)

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    point = manager.restore(state)
    for _ in range(point.batches_delivered):
        scheduler.step()
    for x, y in batches:
        manager.fence()
        ops.assign(opt.learning_rate, ms.Tensor(scheduler.step(), ms.float32))
        cell(x, y)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
