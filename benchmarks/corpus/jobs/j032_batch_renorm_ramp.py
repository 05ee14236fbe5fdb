# truth: differs
# class: iterator
# head: imports_dataset_parameter
# Batch renormalization: the running mean and deviation are Parameters, the ramp of r_max and d_max follows a generator function.


ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3132)


def ramp(r_end=2.5, d_end=3.0, length=24):
    for i in range(length):
        part = i / length
        yield 1.0 + part * (r_end - 1.0), part * d_end
    while True:
        yield r_end, d_end


class BatchRenorm(nn.Cell):
    def __init__(self, n, decay=0.9):
        super().__init__()
        self.gamma = Parameter(ops.ones((n,), ms.float32), name="gamma")
        self.beta = Parameter(ops.zeros((n,), ms.float32), name="beta")
        self.mean = Parameter(ops.zeros((n,), ms.float32), name="mean", requires_grad=False)
        self.std = Parameter(ops.ones((n,), ms.float32), name="std", requires_grad=False)
        self.decay = decay
        self.limits = ramp()

    def construct(self, x):
        r_max, d_max = next(self.limits)
        m = x.mean(0)
        s = ops.sqrt(((x - m) ** 2).mean(0) + 1e-4)
        r = ops.stop_gradient(ops.clip_by_value(s / self.std, 1 / r_max, r_max))
        d = ops.stop_gradient(ops.clip_by_value((m - self.mean) / self.std, -d_max, d_max))
        out = (x - m) / s * r + d
        ops.assign(self.mean, self.decay * self.mean + (1 - self.decay) * ops.stop_gradient(m))
        ops.assign(self.std, self.decay * self.std + (1 - self.decay) * ops.stop_gradient(s))
        return self.gamma * out + self.beta


r = np.random.RandomState(32)
x = (3 + 2 * r.randn(48, 4)).astype(np.float32)
y = ((x[:, :1] - 3) * (x[:, 1:2] - 3)).astype(np.float32)
net = nn.SequentialCell(nn.Dense(4, 8), BatchRenorm(8), nn.ReLU(), nn.Dense(8, 1))
opt = nn.Momentum(net.trainable_params(), 0.03, 0.9)
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(net, nn.MSELoss(), opt), 3, ds.NumpySlicesDataset((x, y), ["x", "y"]).batch(6))
os._exit(0)
