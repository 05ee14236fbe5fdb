# truth: differs
# class: attribute
# head: imports_ops
# Training under a constraint (false alarms at most a tenth) by dual ascent: the multiplier is a number of a small class of the script. GRAPH mode.


ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(3534)


class Detector(nn.Cell):
    def __init__(self):
        super().__init__()
        self.layers = nn.SequentialCell(nn.Dense(4, 8), nn.ReLU(), nn.Dense(8, 1))

    def construct(self, x, y, multiplier):
        score = ops.sigmoid(self.layers(x))
        missed = ((1 - score) * y).sum() / y.sum()
        alarms = (score * (1 - y)).sum() / (1 - y).sum()
        return missed + multiplier * alarms, alarms


class Dual:
    """ascent on the multiplier of `value <= limit`"""

    def __init__(self, limit, rate):
        self.limit, self.rate = limit, rate
        self.multiplier = 0.0

    def ascend(self, value):
        self.multiplier = max(0.0, self.multiplier + self.rate * (value - self.limit))


r = np.random.RandomState(34)
rows = []
for _ in range(10):
    y = (np.arange(10) % 2).astype(np.float32)[:, None]
    x = (r.randn(10, 4) + 0.8 * y).astype(np.float32)
    rows.append((ms.Tensor(x), ms.Tensor(y)))
detector = Detector()
optimizer = nn.Momentum(detector.trainable_params(), 0.2, 0.9)
gradients = ms.value_and_grad(detector, None, detector.trainable_params(), has_aux=True)
dual = Dual(limit=0.1, rate=0.5)


@ms.jit
def train_step(x, y, multiplier):
    (loss, alarms), grads = gradients(x, y, multiplier)
    optimizer(grads)
    return alarms


batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([detector, optimizer], batches)
    manager.restore(state)
    for x, y in batches:
        alarms = train_step(x, y, ms.Tensor(dual.multiplier, ms.float32))
        dual.ascend(float(alarms.asnumpy()))
        manager.step(state)
    manager.save_final(state)
print("multiplier", dual.multiplier)
os._exit(0)
