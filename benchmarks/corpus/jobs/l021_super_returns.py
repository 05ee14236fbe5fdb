# truth: differs
# class: attribute
# head: pynative_callback_dataset_ops
# A library-like base class logs the loss and returns what it logged (a mean over a class attribute); the subclass uses super()'s return value.

ms.set_seed(4121)


class LossLogger(Callback):
    """Prints the mean loss since the start; all loggers of a process share one mean."""

    total, count = 0.0, 0

    def on_train_step_end(self, run_context):
        cb = run_context.original_args()
        LossLogger.total += float(cb.net_outputs.asnumpy())
        LossLogger.count += 1
        mean = LossLogger.total / LossLogger.count
        print(f"{type(self).__name__} {cb.cur_step_num}: {mean:.4f}")
        return mean


class Warmth(LossLogger):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def on_train_step_end(self, run_context):
        mean = super().on_train_step_end(run_context)
        ops.assign(self.layer.bias, self.layer.bias * (1 - 0.05 * mean))
        return mean


r = np.random.RandomState(21)
x = r.randn(48, 5).astype(np.float32)
y = (x[:, :1] + np.abs(x[:, 1:2])).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=False).batch(6)
net = nn.SequentialCell(nn.Dense(5, 8), nn.Tanh(), nn.Dense(8, 1))
model = ms.Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.02, 0.9))
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 3, train, callbacks=[Warmth(net[2])])
os._exit(0)
