# truth: differs
# class: attribute
# head: pynative_dataset_ops
# The train cell pulls the weights towards their moving average; the average is a list of Tensors in an attribute of the cell and begins with the present weights at each start.

ms.set_seed(3504)


class AveragingStep(nn.TrainOneStepCell):
    """SGD with a pull to the exponential average of the weights"""

    def __init__(self, network, optimizer, decay=0.95, pull=0.1):
        super().__init__(network, optimizer)
        self.decay, self.pull = decay, pull
        self.average = None

    def construct(self, x, y):
        loss = self.network(x, y)
        grads = self.grad_no_sens(self.network, self.weights)(x, y)
        self.optimizer(grads)
        if self.average is None:
            self.average = [ms.Tensor(w.asnumpy()) for w in self.weights]
        self.average = [self.decay * a + (1 - self.decay) * w for a, w in zip(self.average, self.weights)]
        for w, a in zip(self.weights, self.average):
            ops.assign(w, w + self.pull * (a - w))
        return loss


def make_data(n):
    r = np.random.RandomState(4)
    x = r.randn(n, 4).astype(np.float32)
    y = (x[:, :1] ** 2 - x[:, 1:2] + 0.3 * r.randn(n, 1)).astype(np.float32)
    return ds.NumpySlicesDataset({"x": x, "y": y}, shuffle=True).batch(5, drop_remainder=True)


net = nn.SequentialCell(nn.Dense(4, 16), nn.ReLU(), nn.Dense(16, 1))
step = AveragingStep(nn.WithLossCell(net, nn.HuberLoss()), nn.SGD(net.trainable_params(), 0.1))
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(step), 4, make_data(50))
os._exit(0)
