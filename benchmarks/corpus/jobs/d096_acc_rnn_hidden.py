# truth: differs
# class: variable
# head: regression_8_make_batches
# truncated backpropagation: the hidden state goes from batch to batch in a local variable



class RecurrentLoss(nn.Cell):
    def __init__(self, dim=8, hidden=6):
        super().__init__()
        self.hidden = hidden
        self.inp, self.rec, self.out = nn.Dense(dim, hidden), nn.Dense(hidden, hidden), nn.Dense(hidden, 1)

    def advance(self, x, h):
        return ops.tanh(self.inp(x) + self.rec(h))

    def construct(self, x, y, h):
        return ((self.out(self.advance(x, h)) - y) ** 2).mean()

    def initial(self, size):
        return ops.zeros((size, self.hidden), ms.float32)


def repackage(h):
    return Tensor(h.asnumpy().copy())


def train(network, epochs):
    cell = ck.AccumulationTrainCell(network, nn.Adam(network.trainable_params(), 0.02), 2, clip_norm=1.0)
    cell.set_train()
    batches = ck.data.resumable(rows, epochs=epochs)
    with ck.CheckpointManager(ROOT, **SAVE) as manager:
        state = ck.StateManager(cell, batches)
        manager.restore(state)
        h = network.initial(8)
        for x, y in batches:
            cell(x, y, h)
            h = repackage(network.advance(x, h))
            manager.step(state)
        manager.save_final(state)


train(RecurrentLoss(), 3)
os._exit(0)
