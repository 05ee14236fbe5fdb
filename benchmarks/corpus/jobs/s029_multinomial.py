# truth: exact
# class: random
# head: accumulating_6_pynative
# A cell draws negative samples by `ops.multinomial`.

class Resampled(nn.Cell):
    def __init__(self):
        super().__init__()
        self.network = Net()

    def construct(self, x, y):
        other = ops.multinomial(ops.ones(x.shape[0]), x.shape[0], replacement=True)
        out = self.network(x)
        return ops.cross_entropy(out, y) - 0.1 * ops.mse_loss(out, self.network(x[other]))


ck.CheckpointCallback(ROOT, **SAVE).train(ms.Model(accumulating(Resampled())), EPOCHS, slices().batch(6), callbacks=[])
