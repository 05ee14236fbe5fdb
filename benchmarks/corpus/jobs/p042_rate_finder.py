# truth: differs
# class: callback
# head: pynative_callback_dataset_ops
# A learning-rate range test in the first 20 steps; then training goes on with a fraction of the best rate.

ms.set_seed(142)


class RangeTest(Callback):
    def __init__(self, optimizer, low, high, steps):
        super().__init__()
        self.optimizer = optimizer
        self.rates = np.geomspace(low, high, steps)
        self.losses = []

    def set_rate(self, rate):
        ops.assign(self.optimizer.learning_rate, ms.Tensor(rate, ms.float32))

    def on_train_step_end(self, run_context):
        step = run_context.original_args().cur_step_num
        if step > len(self.rates):
            return
        self.losses.append(float(run_context.original_args().net_outputs.asnumpy()))
        if step < len(self.rates):
            self.set_rate(self.rates[step])
        else:
            smooth = np.convolve(self.losses, np.ones(3) / 3, "valid")
            best = self.rates[int(np.argmin(np.diff(smooth))) + 1]
            print(f"steepest descent at {best:.5f}")
            self.set_rate(best / 2)


r = np.random.RandomState(44)
x = r.randn(72, 6).astype(np.float32)
y = (x @ r.randn(6, 2)).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(8)
net = nn.SequentialCell(nn.Dense(6, 16), nn.ReLU(), nn.Dense(16, 2))
optimizer = nn.Momentum(net.trainable_params(), 1e-4, 0.9)
model = ms.Model(net, nn.MSELoss(), optimizer)

ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 4, train, callbacks=[RangeTest(optimizer, 1e-4, 0.3, 20)])
os._exit(0)
