# truth: differs
# class: callback
# head: regression_8_dataset

optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)
from mindspore.train import Metric


class RunningBest(Metric):
    def __init__(self):
        super().__init__()
        self.best = 1e9
        self.clear()

    def clear(self):
        self.s = self.n = 0

    def update(self, *inputs):
        self.s += float(inputs[0].asnumpy().mean())
        self.n += 1

    def eval(self):
        self.best = min(self.best, self.s / max(1, self.n))
        return self.best


valid = ds.NumpySlicesDataset((X[:16], Y[:16]), ["x", "y"], shuffle=False).batch(8)
model = ms.Model(net, loss_fn, optimizer, metrics={"best": RunningBest()})
ck.CheckpointCallback(ROOT, **SAVE).fit(
    model, 3, data, valid, callbacks=[ms.ReduceLROnPlateau(monitor="best", patience=0, factor=0.5, min_delta=0.01)]
)
os._exit(0)
