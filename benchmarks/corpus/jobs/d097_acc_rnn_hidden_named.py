# truth: exact
# class: attribute
# head: regression_8_make_batches
# the hidden state is an attribute of an object that is given by name



class RecurrentLoss(nn.Cell):
    def __init__(self, dim=8, hidden=6):
        super().__init__()
        self.inp, self.rec, self.out = nn.Dense(dim, hidden), nn.Dense(hidden, hidden), nn.Dense(hidden, 1)

    def advance(self, x, h):
        return ops.tanh(self.inp(x) + self.rec(h))

    def construct(self, x, y, h):
        return ((self.out(self.advance(x, h)) - y) ** 2).mean()


class Carry:
    """The hidden state between two batches, and how far it was carried."""

    def __init__(self, size, hidden):
        self.h = np.zeros((size, hidden), np.float32)
        self.length = 0

    def as_tensor(self):
        return Tensor(self.h.copy())

    def put(self, h):
        self.h, self.length = h.asnumpy().copy(), self.length + 1
        if self.length == 12:
            self.h, self.length = np.zeros_like(self.h), 0


network = RecurrentLoss()
cell = ck.AccumulationTrainCell(network, nn.Adam(network.trainable_params(), 0.02), 2, clip_norm=1.0).set_train()
carry = Carry(8, 6)
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager(cell, batches, carry=ck.attributes(carry, "h", "length"))
    manager.restore(state)
    for x, y in batches:
        h = carry.as_tensor()
        cell(x, y, h)
        carry.put(network.advance(x, h))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
