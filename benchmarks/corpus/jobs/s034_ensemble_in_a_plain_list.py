# truth: exact
# class: attribute
# head: accumulating_6_pynative
# Members of an ensemble are in a plain list of a cell, where a cell has no parameters; the optimizer has them.

class Ensemble(nn.Cell):
    def __init__(self):
        super().__init__()
        self.members, self.first = [Net(), Net()], Net()

    def construct(self, x, y):
        out = self.first(x)
        for member in self.members:
            out = out + member(x)
        return ops.cross_entropy(out, y)


loss = Ensemble()
weights = [*loss.trainable_params(), *(weight for member in loss.members for weight in member.trainable_params())]
for number, weight in enumerate(weights):
    weight.name = f"{number}.{weight.name}"
ck.CheckpointCallback(ROOT, **SAVE).train(ms.Model(ck.AccumulationTrainCell(loss, nn.Adam(weights, 1e-2), 2)), EPOCHS, slices().batch(6), callbacks=[])
