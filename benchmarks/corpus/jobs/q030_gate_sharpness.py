# truth: differs
# class: attribute
# head: pynative_hashlib_dataset_ops
# A gate cell anneals its own sharpness in construct, as a plain attribute.

ms.set_seed(40)


class Gate(nn.Cell):
    def __init__(self, width):
        super().__init__()
        self.score = nn.Dense(width, width)
        self.sharpness = 1.0

    def construct(self, x):
        if self.training:
            self.sharpness = min(8.0, self.sharpness * 1.06)
        return x * ops.sigmoid(self.sharpness * self.score(x))


r = np.random.RandomState(30)
x = r.randn(60, 6).astype(np.float32)
y = (x[:, :1] * (x[:, 1:2] > 0)).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(6)
net = nn.SequentialCell(Gate(6), nn.Dense(6, 8), nn.ReLU(), nn.Dense(8, 1))
opt = nn.Adam(net.trainable_params(), 0.01)
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(net, nn.MSELoss(), opt), 4, train)
print(hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest(), flush=True)
os._exit(0)
