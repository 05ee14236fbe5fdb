# truth: exact
# class: random
# head: imports_ops
# Mixture of experts (Switch): the balance loss is of this batch alone, router jitter is drawn in the loop from a generator given by name, loads and dropped rows are printed. GRAPH.


ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(4455)
EXPERTS, WIDTH = 3, 5


class Switch(nn.Cell):
    def __init__(self):
        super().__init__()
        self.router = nn.Dense(WIDTH, EXPERTS)
        self.experts = nn.CellList(
            [nn.SequentialCell(nn.Dense(WIDTH, 6), nn.Tanh(), nn.Dense(6, 1)) for _ in range(EXPERTS)]
        )
        self.largest = ops.ReduceMax(keep_dims=True)

    def route(self, x, jitter):
        gate = ops.softmax(self.router(x * jitter), -1)
        chosen = ops.stop_gradient((gate >= self.largest(gate, -1)).astype(ms.float32))
        return gate, chosen

    def construct(self, x, y, jitter):
        gate, chosen = self.route(x, jitter)
        out = ops.zeros_like(y)
        for number in range(EXPERTS):
            share = (gate * chosen)[:, number : number + 1]
            out = out + share * self.experts[number](x)
        balance = EXPERTS * (gate.mean(0) * chosen.mean(0)).sum()
        return ((out - y) ** 2).mean() + 0.05 * balance


class LoadMonitor:
    def __init__(self, capacity):
        self.capacity = capacity
        self.loads, self.over = np.zeros(EXPERTS, int), 0

    def look(self, router, x):
        logits = x @ router.weight.asnumpy().T + router.bias.asnumpy()
        counts = np.bincount(logits.argmax(1), minlength=EXPERTS)
        self.loads += counts
        self.over += int(np.maximum(counts - self.capacity, 0).sum())


r = np.random.RandomState(55)
rows = []
for _ in range(8):
    x = r.randn(9, WIDTH).astype(np.float32)
    y = np.where(x[:, :1] > 0, x[:, 1:2], np.where(x[:, 2:3] > 0, -x[:, 1:2], x[:, 3:4] ** 2))
    rows.append((x, y.astype(np.float32)))
net = Switch()
cell = ck.AccumulationTrainCell(net, nn.Adam(net.trainable_params(), 0.02), accumulation_steps=1).set_train()
jitter, monitor = np.random.default_rng(455), LoadMonitor(capacity=4)

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches, jitter=jitter)
    manager.restore(state)
    for x, y in batches:
        x, y = np.asarray(x), np.asarray(y)
        factor = jitter.uniform(0.9, 1.1, x.shape).astype(np.float32)
        cell(ms.Tensor(x), ms.Tensor(y), ms.Tensor(factor))
        monitor.look(net.router, x)
        manager.step(state)
    manager.save_final(state)
print("loads", monitor.loads.tolist(), "over capacity", monitor.over)
os._exit(0)
