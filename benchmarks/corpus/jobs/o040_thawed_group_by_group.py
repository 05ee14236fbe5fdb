# truth: exact, may be named
# class: callback
# head: pynative_callback_dataset_ops
# Gradual unfreezing by learning rates: the layers' groups begin with rate 0, and at the begin of epochs 2 and 3 a callback gives the next group its rate, by the number of the epoch.

ms.set_seed(3540)


class Backbone(nn.Cell):
    def __init__(self):
        super().__init__()
        self.low, self.high, self.head = nn.Dense(6, 10), nn.Dense(10, 10), nn.Dense(10, 2)
        self.act = nn.Tanh()

    def construct(self, x):
        return self.head(self.act(self.high(self.act(self.low(x)))))


class Thaw(Callback):
    """epoch: (part of the parameters' names, rate)"""

    def __init__(self, plan):
        super().__init__()
        self.plan = plan

    def on_train_epoch_begin(self, run_context):
        cb = run_context.original_args()
        if cb.cur_epoch_num not in self.plan:
            return
        part, rate = self.plan[cb.cur_epoch_num]
        for p, its_rate in zip(cb.optimizer.parameters, cb.optimizer.learning_rate):
            if p.name.startswith(part):
                ops.assign(its_rate, ms.Tensor(rate, ms.float32))


r = np.random.RandomState(40)
x = r.randn(54, 6).astype(np.float32)
y = np.stack([x[:, 0] * x[:, 1], np.sin(x[:, 2])], 1).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(6)
net = Backbone()
groups = [
    {"params": net.head.trainable_params(), "lr": 0.05},
    {"params": net.high.trainable_params(), "lr": 0.0},
    {"params": net.low.trainable_params(), "lr": 0.0},
]
optimizer = nn.Momentum(groups, 0.05, 0.9)
model = ms.Model(net, nn.MSELoss(), optimizer)

ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 4, train, callbacks=[Thaw({2: ("high", 0.02), 3: ("low", 0.01)})])
os._exit(0)
