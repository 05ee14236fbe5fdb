# truth: exact
# class: random
# head: saving_tensor
# ckptkit's dropout in GRAPH mode; a subclass of dict collects what is printed per epoch

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(1)


def make_batches(seed, n=8, size=8, dim=8):
    rng = np.random.default_rng(seed)
    for x in rng.normal(size=(n, size, dim)):
        y = np.tanh(x[:, :3].sum(1, keepdims=True)) + 0.1 * rng.normal(size=(size, 1))
        yield Tensor(x, ms.float32), Tensor(y, ms.float32)


rows = list(make_batches(11))


class EpochLog(dict):
    def __missing__(self, epoch):
        self[epoch] = []
        return self[epoch]

    def report(self):
        for epoch, values in sorted(self.items()):
            print(f"epoch {epoch}: {np.mean(values):.4f} over {len(values)} batches")


class DropoutMLP(nn.Cell):
    def __init__(self, hidden):
        super().__init__()
        self.layers = nn.SequentialCell(
            nn.Dense(8, hidden), nn.ReLU(), nn.Dropout(p=0.2), nn.Dense(hidden, hidden), nn.ReLU(), nn.Dense(hidden, 1)
        )

    def construct(self, x, y):
        return ((self.layers(x) - y) ** 2).mean()


network = ck.nn.replace_dropout(DropoutMLP(12), seed=4)
optimizer = nn.Momentum(network.trainable_params(), 0.02, 0.9)
cell = ck.AccumulationTrainCell(network, optimizer, accumulation_steps=3, remainder="drop").set_train()
log = EpochLog()

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for x, y in batches:
        loss = cell(x, y)
        log[batches.epoch].append(float(loss.asnumpy()))
        manager.step(state)
    manager.save_final(state)
log.report()
os._exit(0)
