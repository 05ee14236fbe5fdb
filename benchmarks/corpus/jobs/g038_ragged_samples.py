# truth: exact
# class: attribute
# head: imports_ops
# Batches of unequal size with normalize="samples" and a multi-head attention pooling; rows are yielded by a replayable class.


ms.set_seed(88)
SIZES = (2, 5, 3, 6, 4, 2, 7, 3)


class AttentionPool(nn.Cell):
    def __init__(self, dim):
        super().__init__()
        self.q = nn.Dense(dim, dim)
        self.k = nn.Dense(dim, dim)
        self.v = nn.Dense(dim, dim)
        self.scale = dim**-0.5

    def construct(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        att = ops.softmax(ops.matmul(q, ops.transpose(k, (0, 2, 1))) * self.scale, -1)
        return ops.matmul(att, v).mean(1)


class SetRegressor(nn.Cell):
    def __init__(self, features=4, dim=8):
        super().__init__()
        self.embed = nn.Dense(features, dim)
        self.norm = nn.LayerNorm((dim,))
        self.pool = AttentionPool(dim)
        self.out = nn.Dense(dim, 1)

    def construct(self, x, y):
        h = self.norm(self.embed(x))
        return ((self.out(self.pool(h)) - y) ** 2).mean()


class RaggedBatches:
    def __init__(self, seed):
        self.seed = seed

    def __len__(self):
        return len(SIZES)

    def __iter__(self):
        r = np.random.RandomState(self.seed)
        for size in SIZES:
            x = r.randn(size, 5, 4).astype(np.float32)
            yield ms.Tensor(x), ms.Tensor(x.max(axis=1)[:, :1].copy())


loss = SetRegressor()
cell = ck.AccumulationTrainCell(
    loss, nn.Adam(loss.trainable_params(), learning_rate=0.01), accumulation_steps=3, normalize="samples"
).set_train()
batches = ck.data.resumable(RaggedBatches(5), epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"],
    save=ck.SaveEvery(micro_steps=5),
    keep=ck.KeepLatest(4),
    saving=ck.Saving(when_busy="wait"),
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    updates = 0
    for x, y in batches:
        value = cell(x, y)
        if cell.updated:
            updates += 1
            print("update", updates, float(value.asnumpy()), float(cell.gradient_norm.asnumpy()))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
