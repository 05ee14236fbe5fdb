# truth: differs
# class: attribute
# head: imports_tensor_ops
# Which block is skipped comes from the golden-ratio sequence, whose last term a small dice object in the network keeps as a float.


ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3130)


class GoldenDice:
    PHI = 0.6180339887498949

    def __init__(self, start=0.0):
        self.term = start

    def __iter__(self):
        return self

    def __next__(self):
        self.term = (self.term + self.PHI) % 1.0
        return self.term


class SkippingNet(nn.Cell):
    def __init__(self, width, depth):
        super().__init__()
        self.inp = nn.Dense(4, width)
        self.blocks = nn.CellList([nn.Dense(width, width) for _ in range(depth)])
        self.out = nn.Dense(width, 1)
        self.dice = GoldenDice(0.25)

    def construct(self, x):
        skip = int(next(self.dice) * (len(self.blocks) + 1))
        h = ops.tanh(self.inp(x))
        for i, block in enumerate(self.blocks):
            if i != skip:
                h = h + 0.5 * ops.tanh(block(h))
        return self.out(h)


r = np.random.RandomState(30)
rows = [(Tensor(a), Tensor(np.abs(a[:, :1]))) for a in r.randn(8, 6, 4).astype(np.float32)]
net = SkippingNet(6, 3)
cell = ck.AccumulationTrainCell(
    nn.WithLossCell(net, nn.MSELoss()), nn.Momentum(net.trainable_params(), 0.05, 0.9), 2
).set_train()
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for x, y in batches:
        cell(x, y)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
