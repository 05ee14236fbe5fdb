# truth: differs
# class: attribute
# head: regression_8_dataset



class Loss(nn.Cell):
    def __init__(self):
        super().__init__()
        self.net = net
        self.ema = {}

    def construct(self, x, y):
        l = ((self.net(x) - y) ** 2).mean()
        v = float(ops.stop_gradient(l))
        self.ema["l"] = 0.9 * self.ema.get("l", v) + 0.1 * v
        return l / self.ema["l"]


loss = Loss()
optimizer = nn.Adam(loss.trainable_params(), 0.01)
cell = ck.AccumulationTrainCell(loss, optimizer, 3)
ck.CheckpointCallback(ROOT, **SAVE).train(ms.Model(cell), 3, data)
os._exit(0)
