# truth: differs
# class: random
# head: accumulating_6_graph
# A cell draws by an object of `ops.StandardNormal`.

class Noisy(nn.Cell):
    def __init__(self):
        super().__init__()
        self.network, self.normal = Net(), ops.StandardNormal()

    def construct(self, x, y):
        return ops.cross_entropy(self.network(x + 0.1 * self.normal(x.shape)), y)


ck.CheckpointCallback(ROOT, **SAVE).train(ms.Model(accumulating(Noisy())), EPOCHS, slices().batch(6), callbacks=[])
