# truth: differs
# class: attribute
# head: imports_tensor_ops
# the loss network anneals a Gumbel-like temperature that it keeps in a schedule object and advances in construct


ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(1)


def blobs(seed, classes=4, dim=8, total=64, size=8):
    rng = np.random.default_rng(seed)
    centers = 2.0 * rng.normal(size=(classes, dim))
    labels = rng.integers(0, classes, total)
    feats = (centers[labels] + rng.normal(size=(total, dim))).astype(np.float32)
    onehot = np.eye(classes, dtype=np.float32)[labels]
    return [(Tensor(feats[k : k + size]), Tensor(onehot[k : k + size])) for k in range(0, total, size)]


rows = blobs(21)


class Anneal:
    def __init__(self, start, stop, rate):
        self.value, self.stop, self.rate = start, stop, rate

    def step(self):
        current = self.value
        self.value = max(self.stop, self.value * self.rate)
        return current


class SoftRouting(nn.Cell):
    """A mixture of two experts with a temperature in the gate."""

    def __init__(self, dim, out):
        super().__init__()
        self.gate = nn.Dense(dim, 2)
        self.experts = nn.CellList([nn.Dense(dim, out), nn.Dense(dim, out)])
        self.temperature = Anneal(5.0, 0.5, 0.92)

    def construct(self, x):
        tau = self.temperature.step() if self.training else self.temperature.stop
        p = ops.softmax(self.gate(x) / tau)
        return p[:, :1] * self.experts[0](x) + p[:, 1:] * self.experts[1](x)


class BrierLoss(nn.Cell):
    def construct(self, logits, target):
        return ((ops.softmax(logits) - target) ** 2).sum(1).mean()


network = nn.WithLossCell(SoftRouting(8, 4), BrierLoss())
cell = ck.AccumulationTrainCell(network, nn.Adam(network.trainable_params(), 0.02), accumulation_steps=2)
cell.set_train()
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for x, y in batches:
        cell(x, y)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
