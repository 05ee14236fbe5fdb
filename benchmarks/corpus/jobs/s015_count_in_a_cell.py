# truth: differs
# class: iterator
# head: accumulating_6_pynative
# A cell divides its input by the next number of an `itertools.count`.

class Falling(nn.Cell):
    def __init__(self):
        super().__init__()
        self.network, self.factors = Net(), itertools.count(1)

    def construct(self, x):
        return self.network(x / next(self.factors))


ck.CheckpointCallback(ROOT, **SAVE).train(ms.Model(accumulating(Loss(Falling()))), EPOCHS, slices().batch(6), callbacks=[])
