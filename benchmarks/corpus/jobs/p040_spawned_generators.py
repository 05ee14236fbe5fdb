# truth: differs
# class: random
# head: imports_dataset
# Mixup; every batch gets a generator of its own, spawned from one seed sequence.


ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(140)
seeds = np.random.SeedSequence(140)


def mixup(x, y, alpha=0.4):
    rng = np.random.default_rng(seeds.spawn(1)[0])
    share, order = np.float32(rng.beta(alpha, alpha)), rng.permutation(len(x))
    return ms.Tensor(share * x + (1 - share) * x[order]), ms.Tensor(share * y + (1 - share) * y[order])


r = np.random.RandomState(42)
labels = r.randint(0, 3, 60)
x = (r.randn(60, 6) + np.eye(3)[labels].repeat(2, 1)).astype(np.float32)
train = ds.NumpySlicesDataset((x, np.eye(3, dtype=np.float32)[labels]), ["x", "y"], shuffle=True).batch(6)


class Loss(nn.Cell):
    def __init__(self):
        super().__init__()
        self.network = nn.SequentialCell(nn.Dense(6, 16), nn.ReLU(), nn.Dense(16, 3))
        self.ce = nn.SoftmaxCrossEntropyWithLogits(sparse=False, reduction="mean")

    def construct(self, x, y):
        return self.ce(self.network(x), y)


loss = Loss()
cell = ck.AccumulationTrainCell(loss, nn.Adam(loss.trainable_params(), 1e-2), 2).set_train()
batches = ck.data.resumable(train, epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for xb, yb in batches:
        cell(*mixup(xb.asnumpy(), yb.asnumpy()))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
