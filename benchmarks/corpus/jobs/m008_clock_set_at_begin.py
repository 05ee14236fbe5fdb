# truth: exact, may be named
# class: callback
# head: pynative_callback_dataset_ops
# The callback counts steps and cools by its own count, but sets the count in on_train_begin from the optimizer's global_step, which is stored.

ms.set_seed(4308)


class Cooling(Callback):
    def __init__(self, base, factor):
        super().__init__()
        self.base, self.factor = base, factor
        self.t = 0
        self.rate = base

    def on_train_begin(self, run_context):
        self.t = int(run_context.original_args().optimizer.global_step.asnumpy().reshape(-1)[0])

    def on_train_step_end(self, run_context):
        self.t += 1
        self.rate = self.base * self.factor**self.t
        ops.assign(run_context.original_args().optimizer.learning_rate, ms.Tensor(self.rate, ms.float32))

    def on_train_epoch_end(self, run_context):
        print(f"after {self.t} updates the rate is {self.rate:.5f}")


r = np.random.RandomState(8)
x = r.randn(48, 4).astype(np.float32)
y = np.tanh(2 * x[:, :1] + x[:, 1:2] * x[:, 3:]).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(6)
net = nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 1))
model = ms.Model(net, nn.MSELoss(), nn.Adam(net.trainable_params(), 0.03))
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 3, train, callbacks=[Cooling(0.03, 0.94)])
os._exit(0)
