# truth: differs
# class: attribute
# head: regression_8_dataset



class GradStat:
    def __init__(self):
        self.m = 0.0

    def __call__(self, grad):
        self.m = 0.9 * self.m + 0.1 * float(ops.abs(grad).mean())
        return grad / (1 + 10 * self.m)


gs = GradStat()


class Loss(nn.Cell):
    def __init__(self):
        super().__init__()
        self.net = net
        self.h = ops.InsertGradientOf(gs)

    def construct(self, x, y):
        return ((self.h(self.net(x)) - y) ** 2).mean()


loss = Loss()
optimizer = nn.SGD(loss.trainable_params(), 0.05)
cell = ck.AccumulationTrainCell(loss, optimizer, 2)
ck.CheckpointCallback(ROOT, **SAVE).train(ms.Model(cell), 3, data)
os._exit(0)
