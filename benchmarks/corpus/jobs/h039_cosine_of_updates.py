# truth: exact
# class: attribute
# head: imports_ops
# The temperature is a MindSpore CosineDecayLR cell, asked with the number of updates that the training cell counts itself.


ms.set_seed(87)


class Tempered(nn.Cell):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def construct(self, x, label, temperature):
        return ops.cross_entropy(self.net(x) / temperature, label)


net = nn.SequentialCell(nn.Dense(9, 8), nn.ReLU(), nn.Dense(8, 4))
cell = ck.AccumulationTrainCell(Tempered(net), nn.Adam(net.trainable_params(), 0.01), 2, clip_norm=1.0)
cell.set_train()
cosine = nn.CosineDecayLR(0.5, 2.0, 12)


def temperature():
    value = cosine(ms.Tensor(min(cell.counters.updates, 12), ms.int32))
    return ms.Tensor(float(value.asnumpy()), ms.float32)


r = np.random.RandomState(69)
label = r.randint(0, 4, 64).astype(np.int32)
X = (r.randn(64, 9) + np.eye(4, 9)[label]).astype(np.float32)
rows = [(ms.Tensor(X[i : i + 8]), ms.Tensor(label[i : i + 8])) for i in range(0, 64, 8)]
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for x, y in batches:
        cell(x, y, temperature())
        manager.step(state)
    manager.save_final(state)
os._exit(0)
