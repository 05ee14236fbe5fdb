# truth: differs
# class: attribute
# head: accumulating_6_pynative
# A cell draws a mask at its first call and keeps it.

class Masked(nn.Cell):
    def __init__(self):
        super().__init__()
        self.network, self.mask = Net(), None

    def construct(self, x, y):
        if self.mask is None:
            self.mask = ms.Tensor(np.random.rand(*x.shape) > 0.3, ms.float32)
        return ops.cross_entropy(self.network(x * self.mask), y)


ck.CheckpointCallback(ROOT, **SAVE).train(ms.Model(accumulating(Masked())), EPOCHS, slices().batch(6), callbacks=[])
