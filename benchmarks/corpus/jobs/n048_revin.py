# truth: exact
# class: attribute
# head: pynative_ops
# Forecasting with reversible instance normalization: the layer keeps mean and deviation of the batch as attributes between its two calls, and sets them before it reads them.

ms.set_seed(4448)
PAST, FUTURE, CHANNELS = 10, 3, 2


class RevIN(nn.Cell):
    """as in the paper's code: x = revin.normalize(x), then the model, then revin.denormalize(y)"""

    def __init__(self, channels, eps=1e-4):
        super().__init__()
        self.eps = eps
        self.gain = ms.Parameter(ops.ones((channels,), ms.float32), name="gain")
        self.shift = ms.Parameter(ops.zeros((channels,), ms.float32), name="shift")
        self.mean, self.deviation = None, None

    def normalize(self, x):
        self.mean = ops.stop_gradient(ops.mean(x, 1, True))
        self.deviation = ops.stop_gradient(ops.sqrt(ops.mean((x - self.mean) ** 2, 1, True) + self.eps))
        return (x - self.mean) / self.deviation * self.gain + self.shift

    def denormalize(self, x):
        return (x - self.shift) / (self.gain + self.eps) * self.deviation + self.mean


class Forecaster(nn.Cell):
    def __init__(self):
        super().__init__()
        self.revin = RevIN(CHANNELS)
        self.linear = nn.Dense(PAST, FUTURE)

    def construct(self, past, future):
        x = self.revin.normalize(past)
        out = self.linear(x.transpose(0, 2, 1)).transpose(0, 2, 1)
        return ((self.revin.denormalize(out) - future) ** 2).mean()


r = np.random.RandomState(48)
time = np.arange(120)
series = np.stack([np.sin(time / 5) + time / 40, np.cos(time / 7) - time / 60], 1) + 0.1 * r.randn(120, 2)
windows = [series[t : t + PAST + FUTURE] for t in range(0, 96, 2)]
rows = []
for i in range(8):
    batch = np.stack(windows[i::8]).astype(np.float32)
    rows.append((ms.Tensor(batch[:, :PAST]), ms.Tensor(batch[:, PAST:])))
net = Forecaster()
cell = ck.AccumulationTrainCell(net, nn.Adam(net.trainable_params(), 0.02), accumulation_steps=2).set_train()

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for past, future in batches:
        cell(past, future)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
