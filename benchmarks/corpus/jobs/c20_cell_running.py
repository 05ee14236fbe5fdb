# truth: differs
# class: attribute
# head: regression_8_arrays

rows = [(Tensor(X[i * 8 : i * 8 + 8]), Tensor(Y[i * 8 : i * 8 + 8])) for i in range(8)]
loss_fn = nn.MSELoss()


class FocalEMA(nn.Cell):
    def __init__(self):
        super().__init__()
        self.mean = 1.0

    def construct(self, p, t):
        l = ((p - t) ** 2).mean()
        self.mean = 0.9 * self.mean + 0.1 * float(ops.stop_gradient(l))
        return l / self.mean


optimizer = None
net = nn.Dense(8, 1)
optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)
data = ds.NumpySlicesDataset((X, Y), ["x", "y"], shuffle=False).batch(8)


class Train(nn.Cell):
    def __init__(self):
        super().__init__(auto_prefix=False)
        self.net, self.loss, self.opt = net, FocalEMA(), optimizer
        self.gf = ms.value_and_grad(self.fwd, None, optimizer.parameters)

    def fwd(self, x, y):
        return self.loss(self.net(x), y)

    def construct(self, x, y):
        l, gr = self.gf(x, y)
        self.opt(gr)
        return l


model = ms.Model(Train())
ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, data)
os._exit(0)
