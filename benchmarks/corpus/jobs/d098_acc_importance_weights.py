# truth: differs
# class: data
# head: saving_tensor
# weights of samples by their losses: a structured NumPy array in the sampler object, filled in the loop

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(1)


def indexed_batches(seed, n=8, size=8, dim=8):
    rng = np.random.default_rng(seed)
    for k in range(n):
        x = rng.normal(size=(size, dim))
        y = x[:, :1] * x[:, 1:2] + (0.2 + 0.2 * k) * rng.normal(size=(size, 1))
        yield Tensor([k], ms.int32), Tensor(x, ms.float32), Tensor(y, ms.float32)


rows = list(indexed_batches(31))


class SampleTable:
    dtype = np.dtype([("loss", np.float32), ("visits", np.int32)])

    def __init__(self, batches, size):
        self.table = np.zeros((batches, size), self.dtype)

    def visit(self, k, losses):
        row = self.table[k]
        row["visits"] += 1
        row["loss"] += (losses - row["loss"]) / np.minimum(row["visits"], 4)

    def weights(self, k):
        seen = self.table["visits"] > 0
        if not seen.any():
            return np.ones(self.table.shape[1], np.float32)
        typical = self.table["loss"][seen].mean()
        return np.where(seen[k], np.sqrt(self.table["loss"][k] / typical), 1.0).astype(np.float32)


class WeightedLoss(nn.Cell):
    def __init__(self, backbone):
        super().__init__(auto_prefix=False)
        self.backbone = backbone

    def construct(self, x, y, weights):
        return (weights * ((self.backbone(x) - y) ** 2).sum(1)).mean()


backbone = nn.SequentialCell(nn.Dense(8, 12), nn.ReLU(), nn.Dense(12, 1))
network = WeightedLoss(backbone)
cell = ck.AccumulationTrainCell(network, nn.Adam(network.trainable_params(), 0.01), accumulation_steps=2)
cell.set_train()
table = SampleTable(len(rows), 8)

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for index, x, y in batches:
        k = int(index.asnumpy()[0])
        cell(x, y, Tensor(table.weights(k)))
        table.visit(k, ((backbone(x) - y).asnumpy() ** 2).sum(axis=1))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
