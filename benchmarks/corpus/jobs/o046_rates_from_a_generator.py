# truth: differs
# class: callback
# head: imports_monitor_callback_dataset_ops
# The one-cycle rates come from a generator function that the callback asks with next() at each step; a resumed run begins the cycle again.


ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3546)


def one_cycle(low, high, steps):
    up = steps * 2 // 5
    for i in range(up):
        yield low + (high - low) * i / up
    for i in range(steps - up):
        yield high * (1 - i / (steps - up))
    while True:
        yield 0.0


class RateFrom(Callback):
    def __init__(self, rates):
        super().__init__()
        self.rates = rates

    def on_train_step_begin(self, run_context):
        optimizer = run_context.original_args().optimizer
        ops.assign(optimizer.learning_rate, ms.Tensor(next(self.rates), ms.float32))


r = np.random.RandomState(46)
series = np.cumsum(r.randn(66, 12), 1)
x = (series[:, None, :-2] / 3).astype(np.float32)
y = ((series[:, -1:] - series[:, -3:-2]) / 3).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(6)
net = nn.SequentialCell(nn.Conv1d(1, 4, 3, pad_mode="valid"), nn.Tanh(), nn.Flatten(), nn.Dense(4 * 8, 1))
model = ms.Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.01, 0.9))

ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 3, train, callbacks=[RateFrom(one_cycle(0.005, 0.1, 33)), LossMonitor(11)])
os._exit(0)
