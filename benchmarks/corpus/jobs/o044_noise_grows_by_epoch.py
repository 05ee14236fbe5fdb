# truth: exact
# class: callback
# head: imports_monitor_callback_dataset_ops
# A callback raises the strength of an augmentation at the begin of each epoch, from the number of the epoch; the strength is a Parameter of the loss, so GRAPH mode sees it; the noise is a column of the data.


ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(3544)


class NoisyLoss(nn.Cell):
    def __init__(self, network):
        super().__init__(auto_prefix=False)
        self.network = network
        self.strength = ms.Parameter(ms.Tensor(0.0, ms.float32), name="strength", requires_grad=False)
        self.loss = nn.SmoothL1Loss(reduction="mean")

    def construct(self, x, noise, y):
        return self.loss(self.network(x + self.strength * noise), y)


class StrengthRamp(Callback):
    def __init__(self, strength, most, epochs):
        super().__init__()
        self.strength, self.most, self.epochs = strength, most, epochs

    def on_train_epoch_begin(self, run_context):
        epoch = run_context.original_args().cur_epoch_num
        value = self.most * (epoch - 1) / (self.epochs - 1)
        ops.assign(self.strength, ms.Tensor(value, ms.float32))


r = np.random.RandomState(44)
x = r.randn(60, 5).astype(np.float32)
noise = r.randn(60, 5).astype(np.float32)
y = (x[:, :1] * x[:, 1:2] - x[:, 4:]).astype(np.float32)
train = ds.NumpySlicesDataset((x, noise, y), ["x", "noise", "y"], shuffle=True).batch(6)
net = nn.SequentialCell(nn.Dense(5, 12), nn.Tanh(), nn.Dense(12, 1))
loss = NoisyLoss(net)
cell = ck.AccumulationTrainCell(loss, nn.Adam(net.trainable_params(), 0.02), accumulation_steps=3, remainder="flush")

ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(cell), 4, train, callbacks=[StrengthRamp(loss.strength, 0.5, 4), LossMonitor(10)])
os._exit(0)
