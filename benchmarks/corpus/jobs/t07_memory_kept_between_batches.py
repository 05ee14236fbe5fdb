# truth: exact
# class: other
# head: accumulating_6_graph
# A recurrent cell whose state goes on from batch to batch, in a parameter.

class Remembering(nn.Cell):
    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.GRUCell(8, 6), nn.Dense(6, 3)
        self.state = ms.Parameter(ops.zeros((6, 6)), name="state", requires_grad=False)

    def construct(self, x, y):
        state = self.cell(x, self.state + 0.0)
        loss = ops.cross_entropy(self.head(state), y)
        return ops.depend(loss, ops.assign(self.state, ops.stop_gradient(state)))


cell = accumulating(Remembering())
ck.CheckpointCallback(ROOT, **SAVE).train(ms.Model(cell), EPOCHS, slices().batch(6))
