# truth: differs
# class: random
# head: accumulating_6_graph
# A compiled cell mixes a batch by `ops.rand`.

class Mixup(nn.Cell):
    def __init__(self):
        super().__init__()
        self.network = Net()

    def construct(self, x, y):
        share = ops.rand(1)
        mixed = self.network(share * x + (1 - share) * ops.flip(x, (0,)))
        target = ops.one_hot(y, 3, ms.Tensor(1.0), ms.Tensor(0.0))
        return ops.cross_entropy(mixed, share * target + (1 - share) * ops.flip(target, (0,)))


ck.CheckpointCallback(ROOT, **SAVE).train(ms.Model(accumulating(Mixup())), EPOCHS, slices().batch(6), callbacks=[])
