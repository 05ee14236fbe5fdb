# truth: exact
# class: attribute
# head: imports_dataset_parameter
# A base class turns each float that is assigned to a declared name into a Parameter, so `self.level = ...` in construct is stored.


ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3125)


class StatefulCell(nn.Cell):
    persistent = ()

    def __setattr__(self, name, value):
        if name not in type(self).persistent or isinstance(value, Parameter):
            super().__setattr__(name, value)
            return
        there = getattr(self, name, None)
        if isinstance(there, Parameter):
            ops.assign(there, Tensor(float(value), ms.float32))
        else:
            made = Parameter(Tensor(float(value), ms.float32), name=name, requires_grad=False)
            super().__setattr__(name, made)


class LevelledStep(StatefulCell):
    persistent = ("level", "pace")

    def __init__(self, network, optimizer):
        super().__init__()
        self.network, self.optimizer = network, optimizer
        self.grad = ms.value_and_grad(network, None, optimizer.parameters)
        self.level = 0.3
        self.pace = 1.0

    def construct(self, x, y):
        loss, grads = self.grad(x, y)
        factor = float(self.pace.asnumpy())
        self.optimizer(tuple(g * factor for g in grads))
        value = float(loss.asnumpy())
        self.pace = 1.02 * factor if value < float(self.level.asnumpy()) else 0.95 * factor
        self.level = 0.8 * float(self.level.asnumpy()) + 0.2 * value
        return loss


r = np.random.RandomState(25)
x = r.randn(32, 6).astype(np.float32)
y = np.sort(x, 1)[:, :2].copy()
net = nn.SequentialCell(nn.Dense(6, 10), nn.Tanh(), nn.Dense(10, 2))
cell = LevelledStep(nn.WithLossCell(net, nn.MSELoss()), nn.Momentum(net.trainable_params(), 0.05, 0.9))
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(cell), 3, ds.NumpySlicesDataset((x, y), ["x", "y"]).batch(4))
os._exit(0)
