# truth: differs
# class: attribute
# head: imports_dataset
# Dynamic loss scaling by hand: scale and good steps are plain numbers of the train cell. The scale doubles every third good step until gradients overflow and a step is skipped.


ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3516)


class ScaledStep(nn.TrainOneStepCell):
    def __init__(self, network, optimizer, scale, window):
        super().__init__(network, optimizer)
        self.scale, self.window = scale, window
        self.good, self.calls, self.skipped = 0, 0, []

    def construct(self, x, y):
        self.calls += 1
        loss = self.network(x, y)
        sens = ms.Tensor(self.scale, loss.dtype)
        grads = self.grad(self.network, self.weights)(x, y, sens)
        if all(np.isfinite(g.asnumpy()).all() for g in grads):
            self.optimizer(tuple(g / self.scale for g in grads))
            self.good += 1
            if self.good == self.window:
                self.scale, self.good = self.scale * 2, 0
        else:
            self.scale, self.good = self.scale / 2, 0
            self.skipped.append(self.calls)
        return loss


r = np.random.RandomState(16)
x = r.randn(60, 4).astype(np.float32)
y = (20 * x[:, :1] * x[:, 1:2] + 30).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(6)
net = nn.SequentialCell(nn.Dense(4, 10), nn.Tanh(), nn.Dense(10, 1))
step = ScaledStep(nn.WithLossCell(net, nn.MSELoss()), nn.SGD(net.trainable_params(), 0.005), 2.0**120, 3)

ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(step), 4, train)
print("skipped", step.skipped, "scale", step.scale)
os._exit(0)
