# truth: exact
# class: callback
# head: regression_8_dataset

optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)
from mindspore.train import Metric


class Dist(Metric):
    def __init__(self):
        super().__init__()
        self.clear()

    def clear(self):
        self.s = self.n = 0

    def update(self, *inputs):
        self.s += float(np.abs(inputs[0].asnumpy()).mean())
        self.n += 1

    def eval(self):
        return self.s / max(1, self.n)


valid = ds.NumpySlicesDataset((X[:16], Y[:16]), ["x", "y"], shuffle=False).batch(8)
model = ms.Model(net, loss_fn, optimizer, metrics={"d": Dist()})
ck.CheckpointCallback(ROOT, **SAVE).fit(model, 3, data, valid)
os._exit(0)
