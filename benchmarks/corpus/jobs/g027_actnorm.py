# truth: differs
# class: attribute
# head: imports_dataset_parameter
# A flow with ActNorm layers: scale and bias are set from the first batch, and whether that was done is a plain bool of the layer.


ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(17)


class ActNorm(nn.Cell):
    def __init__(self, dim, name):
        super().__init__()
        self.log_scale = Parameter(Tensor(np.zeros((1, dim), np.float32)), name=name + ".log_scale")
        self.bias = Parameter(Tensor(np.zeros((1, dim), np.float32)), name=name + ".bias")
        self.initialized = False

    def construct(self, x):
        if not self.initialized:
            batch = ops.stop_gradient(x).asnumpy()
            self.bias.set_data(Tensor(-batch.mean(0, keepdims=True).astype(np.float32)))
            self.log_scale.set_data(Tensor(-np.log(batch.std(0, keepdims=True) + 1e-3).astype(np.float32)))
            self.initialized = True
        z = (x + self.bias) * ops.exp(self.log_scale)
        return z, self.log_scale.sum()


class Coupling(nn.Cell):
    def __init__(self, dim):
        super().__init__()
        self.half = dim // 2
        self.net = nn.SequentialCell(nn.Dense(self.half, 8), nn.Tanh(), nn.Dense(8, self.half))

    def construct(self, x):
        a, b = x[:, : self.half], x[:, self.half :]
        return ops.concat((b + self.net(a), a), axis=1)


class FlowNLL(nn.Cell):
    def __init__(self, dim=4):
        super().__init__()
        self.norm1, self.couple1 = ActNorm(dim, "norm1"), Coupling(dim)
        self.norm2, self.couple2 = ActNorm(dim, "norm2"), Coupling(dim)

    def construct(self, x):
        z, d1 = self.norm1(x)
        z, d2 = self.norm2(self.couple1(z))
        z = self.couple2(z)
        return 0.5 * (z**2).sum(1).mean() - d1 - d2


data = (np.random.RandomState(6).randn(64, 4) * [1, 3, 0.5, 2] + [2, 0, 1, -1]).astype(np.float32)
dataset = ds.NumpySlicesDataset({"x": data}, shuffle=True).batch(8)

flow = FlowNLL()
cell = ck.AccumulationTrainCell(flow, nn.Adam(flow.trainable_params(), learning_rate=0.01), accumulation_steps=2)
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(cell), 3, dataset)
os._exit(0)
