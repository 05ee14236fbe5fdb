# truth: exact
# class: global
# head: imports_dataset
# BatchNorm is frozen in every third step: the train cell sets the mode of that part by the optimizer's global_step before each forward.


ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3140)


class Alternating(nn.TrainOneStepCell):
    def __init__(self, network, optimizer, part, period=3):
        super().__init__(network, optimizer)
        self.both = ms.value_and_grad(network, None, optimizer.parameters)
        self.part = part
        self.period = period

    @property
    def frozen_now(self):
        return int(self.optimizer.global_step.asnumpy().item()) % self.period == self.period - 1

    def construct(self, x, y):
        self.part.set_train(not self.frozen_now)
        loss, grads = self.both(x, y)
        self.optimizer(grads)
        return loss


r = np.random.RandomState(40)
x = (r.randn(64, 4) * [1, 2, 3, 4]).astype(np.float32)
y = np.tanh(x[:, :1]).astype(np.float32)
norm = nn.BatchNorm1d(4, momentum=0.8)
net = nn.SequentialCell(norm, nn.Dense(4, 8), nn.ReLU(), nn.Dense(8, 1))
step = Alternating(nn.WithLossCell(net, nn.MSELoss()), nn.Adam(net.trainable_params(), 0.02), norm)
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(step), 3, ds.NumpySlicesDataset((x, y), ["x", "y"]).batch(8))
os._exit(0)
