# truth: differs
# class: callback
# head: pynative_callback_dataset_ops
# A meter raises NotCalibrated until it has seen six losses; the callback catches it and trains at a fixed rate until then.

ms.set_seed(4113)


class NotCalibrated(LookupError):
    pass


class ZScore:
    def __init__(self, needed=6):
        self.needed, self.n, self.mean, self.m2 = needed, 0, 0.0, 0.0

    def update(self, value):
        self.n += 1
        delta = value - self.mean
        self.mean += delta / self.n
        self.m2 += delta * (value - self.mean)

    def __call__(self, value):
        if self.n < self.needed:
            raise NotCalibrated(f"{self.needed - self.n} values missing")
        return (value - self.mean) / (self.m2 / self.n + 1e-8) ** 0.5


class Adapt(Callback):
    def __init__(self, score):
        super().__init__()
        self.score = score

    def on_train_step_end(self, run_context):
        cb = run_context.original_args()
        loss = float(cb.net_outputs.asnumpy())
        self.score.update(loss)
        try:
            rate = 0.02 * np.exp(-0.3 * self.score(loss))
        except NotCalibrated as why:
            print("fixed rate:", why)
            rate = 0.01
        ops.assign(cb.optimizer.learning_rate, ms.Tensor(rate, ms.float32))


r = np.random.RandomState(13)
x = r.randn(48, 5).astype(np.float32)
y = np.maximum(x[:, :1], x[:, 1:2]).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=False).batch(6)
net = nn.SequentialCell(nn.Dense(5, 8), nn.Tanh(), nn.Dense(8, 1))
model = ms.Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.01, 0.7))
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 3, train, callbacks=[Adapt(ZScore())])
os._exit(0)
