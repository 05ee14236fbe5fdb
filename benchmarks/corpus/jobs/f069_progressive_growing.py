# truth: differs
# class: attribute
# head: imports_ops
# Progressive growing: the new block is faded in by alpha, an attribute of the cell that grow() raises after each batch.


ms.set_seed(94)
ms.set_context(mode=ms.PYNATIVE_MODE)


class GrowingNet(nn.Cell):
    def __init__(self, width=8):
        super().__init__()
        self.stem = nn.Dense(6, width)
        self.early = nn.Dense(width, 3)
        self.block = nn.SequentialCell(nn.Dense(width, width), nn.Tanh())
        self.late = nn.Dense(width, 3)
        self.fade = dict(alpha=0.0, rate=0.02)

    def grow(self, gap):
        """the faster, the smaller the loss of the new path is"""
        self.fade["alpha"] = min(1.0, self.fade["alpha"] + self.fade["rate"] * (2.0 if gap < 1 else 1.0))

    def construct(self, x):
        h = ops.tanh(self.stem(x))
        a = self.fade["alpha"]
        return (1 - a) * self.early(h) + a * self.late(self.block(h))


net = GrowingNet()
loss = nn.WithLossCell(net, nn.MSELoss())
cell = ck.AccumulationTrainCell(loss, nn.Adam(net.trainable_params(), 0.01), 2).set_train()

r = np.random.RandomState(94)
rows = [(ms.Tensor(x), ms.Tensor(x[:, :3] ** 2)) for x in r.randn(8, 5, 6).astype(np.float32)]
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for x, y in batches:
        value = float(cell(x, y).asnumpy())
        net.grow(value)
        manager.step(state)
    manager.save_final(state)
print("alpha", net.fade["alpha"])
os._exit(0)
