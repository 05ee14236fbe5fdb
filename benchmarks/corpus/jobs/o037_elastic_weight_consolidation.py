# truth: exact
# class: attribute
# head: pynative_ops
# Continual learning with EWC: before the seventeenth batch, by the restored position, anchors and importances are taken into Parameters of a cell in the list; a second task follows.

ms.set_seed(3537)
SWITCH, TOTAL = 16, 36


class Consolidation(nn.Cell):
    def __init__(self, weights):
        super().__init__()
        self.anchors = weights.clone(prefix="anchor")
        self.importances = weights.clone(prefix="importance", init="zeros")
        for p in (*self.anchors, *self.importances):
            p.requires_grad = False

    def construct(self, weights):
        loss = 0.0
        for w, a, f in zip(weights, self.anchors, self.importances):
            loss += (f * (w - a) ** 2).sum()
        return loss


r = np.random.RandomState(37)


def task(a, b):
    rows = []
    for _ in range(6):
        x = r.randn(6, 4).astype(np.float32)
        rows.append((ms.Tensor(x), ms.Tensor(np.tanh(a * x[:, :1] + b * x[:, 1:2]).astype(np.float32))))
    return rows


first, second = task(2, -1), task(-1, 2)
net = nn.SequentialCell(nn.Dense(4, 10), nn.Tanh(), nn.Dense(10, 1))
weights = ms.ParameterTuple(net.trainable_params())
optimizer = nn.Adam(weights, 0.02)
memory = Consolidation(weights)
mse = nn.MSELoss()
task_gradients = ms.value_and_grad(lambda x, y: mse(net(x), y), None, weights)
gradients = ms.value_and_grad(lambda x, y: mse(net(x), y) + 5 * memory(weights), None, weights)


def consolidate():
    for a, w in zip(memory.anchors, weights):
        ops.assign(a, w)
    for x, y in first:
        _, grads = task_gradients(x, y)
        for f, g in zip(memory.importances, grads):
            ops.assign_add(f, g * g / len(first))


with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, optimizer, memory])
    point = manager.restore(state)
    for number in range(point.batches_delivered, TOTAL):
        if number == SWITCH:
            manager.fence()
            consolidate()
        rows = first if number < SWITCH else second
        x, y = rows[number % len(rows)]
        loss, grads = gradients(x, y)
        manager.fence()
        optimizer(grads)
        state.count_delivered()
        manager.step(state)
    manager.save_final(state)
os._exit(0)
