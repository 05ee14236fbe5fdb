# truth: differs
# class: attribute
# head: imports_dataset
# A forward pre-hook, a bound method of a Standardizer, subtracts running means from what enters the second layer; PYNATIVE, Model.train.


ms.set_seed(84)
ms.set_context(mode=ms.PYNATIVE_MODE)


class Standardizer:
    def __init__(self, width, momentum=0.9):
        self.mean = np.zeros((1, width), np.float32)
        self.momentum = momentum

    def hook(self, cell, inputs):
        h = inputs[0]
        now = h.asnumpy().mean(0, keepdims=True)
        self.mean = (self.momentum * self.mean + (1 - self.momentum) * now).astype(np.float32)
        return h - ms.Tensor(self.mean)

    def attach(self, cell):
        return cell.register_forward_pre_hook(self.hook)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.first = nn.Dense(8, 10)
        self.act = nn.ReLU()
        self.second = nn.Dense(10, 1)

    def construct(self, x):
        return self.second(self.act(self.first(x)))


r = np.random.RandomState(66)
x = r.randn(64, 8).astype(np.float32)
y = np.abs(x[:, :1]).astype(np.float32)
dataset = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=False).batch(8)

net = Net()
standardizer = Standardizer(10)
standardizer.attach(net.second)
cell = ck.AccumulationTrainCell(
    nn.WithLossCell(net, nn.MSELoss()), nn.Adam(net.trainable_params(), learning_rate=0.01), 2
)
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(cell), 3, dataset)
os._exit(0)
