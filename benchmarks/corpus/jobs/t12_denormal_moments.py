# truth: exact
# class: other
# head: accumulating_6_graph
# A weight without a gradient, as a row of an embedding for words that do not come: its moment gets denormal.

class Idle(nn.Cell):
    def __init__(self):
        super().__init__()
        self.loss = Loss(Net())
        self.idle = ms.Parameter(ms.Tensor(np.ones(1000, np.float32)), name="idle")

    def construct(self, x, y):
        return self.loss(x, y) + 0.0 * self.idle.sum()


loss = Idle()
optimizer = nn.AdamWeightDecay(loss.trainable_params(), 1e-2)
sinking = ms.Tensor(np.full(1000, 1.4e-38, np.float32))
next(moment for moment in optimizer.moments1 if moment.size == 1000).set_data(sinking)
cell = ck.AccumulationTrainCell(loss, optimizer, 3)
ck.CheckpointCallback(ROOT, **SAVE).train(ms.Model(cell), EPOCHS, slices().batch(6))
