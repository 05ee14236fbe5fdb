# truth: refused
# class: attribute
# head: regression_8_dataset

optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)


class Ramp:
    def __init__(self):
        self.k = 1

    def __call__(self, step):
        if step and step % 4 == 0:
            self.k = min(4, self.k + 1)
        return self.k


cell = ck.AccumulationTrainCell(nn.WithLossCell(net, loss_fn), optimizer, Ramp())
ck.CheckpointCallback(ROOT, **SAVE).train(ms.Model(cell), 3, data)
os._exit(0)
