# truth: differs
# class: random
# head: accumulating_6_graph
# A compiled cell draws by `ops.gumbel_softmax`.

class Gumbel(nn.Cell):
    def __init__(self):
        super().__init__()
        self.network, self.head = Net(), nn.Dense(3, 3)

    def construct(self, x, y):
        return ops.cross_entropy(self.head(ops.gumbel_softmax(self.network(x), tau=1.0)), y)


ck.CheckpointCallback(ROOT, **SAVE).train(ms.Model(accumulating(Gumbel())), EPOCHS, slices().batch(6), callbacks=[])
