# truth: exact
# class: attribute
# head: pynative_callback_dataset_ops
# Count and level of a throttle are given by ck.attributes; but `level` is a property whose setter begins a new count, also when the restore assigns it.

ms.set_seed(4413)


class Throttle:
    """levels 0, 1, 2, ...; a level lasts for some steps, a bad step counts more"""

    def __init__(self, base, lasts):
        self.base, self.lasts = base, lasts
        self.level = 0

    @property
    def level(self):
        return self._level

    @level.setter
    def level(self, value):
        self._level = value
        self.count = 0.0

    def after(self, loss):
        self.count += 1 + min(1.0, loss)
        if self.count >= self.lasts:
            self.level += 1
        return self.base * 0.7**self.level


class Throttled(Callback):
    def __init__(self, throttle):
        super().__init__()
        self.throttle = throttle

    def on_train_step_end(self, run_context):
        cb = run_context.original_args()
        rate = self.throttle.after(float(cb.net_outputs.asnumpy()))
        ops.assign(cb.optimizer.learning_rate, ms.Tensor(rate, ms.float32))


r = np.random.RandomState(13)
x = r.randn(48, 4).astype(np.float32)
y = (0.7 * x[:, :1] - 0.5 * x[:, 1:2] * x[:, 2:3]).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(6)
net = nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 1))
model = ms.Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.06, 0.9))
throttle = Throttle(0.06, lasts=12)
ckpt = ck.CheckpointCallback(
    os.environ["ROOT"],
    save=ck.SaveEvery(micro_steps=5),
    saving=ck.Saving(when_busy="wait"),
    stateful={"throttle": ck.attributes(throttle, "count", "level")},
)
ckpt.train(model, 4, train, callbacks=[Throttled(throttle)])
os._exit(0)
