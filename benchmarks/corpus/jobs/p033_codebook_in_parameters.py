# truth: exact
# class: attribute
# head: imports_dataset_ops
# A vector quantizer in one graph; its cluster sizes and sums are parameters without gradient.


ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(133)


def state(values, name):
    return ms.Parameter(ms.Tensor(values.astype(np.float32)), name=name, requires_grad=False)


class QuantizedAutoencoder(nn.Cell):
    def __init__(self, width=3, codes=6):
        super().__init__()
        self.encoder, self.decoder = nn.Dense(8, width), nn.Dense(width, 8)
        start = np.random.RandomState(34).randn(codes, width)
        self.codes, self.sums = state(start, "codes"), state(start, "sums")
        self.sizes = state(np.ones(codes), "sizes")
        self.depth = codes

    def construct(self, x):
        z = self.encoder(x)
        chosen = ops.argmin(((z[:, None] - self.codes[None]) ** 2).sum(-1), 1)
        onehot = ops.stop_gradient(ops.one_hot(chosen, self.depth, ms.Tensor(1.0), ms.Tensor(0.0)))
        quantized = ops.stop_gradient(ops.matmul(onehot, self.codes))
        through = z + ops.stop_gradient(quantized - z)
        loss = ((self.decoder(through) - x) ** 2).mean() + 0.25 * ((z - quantized) ** 2).mean()
        return loss, ops.stop_gradient(z), onehot


class QuantizedStep(nn.Cell):
    def __init__(self, network, optimizer, decay=0.9):
        super().__init__(auto_prefix=False)
        self.network, self.optimizer, self.decay = network, optimizer, decay
        self.grad_fn = ops.value_and_grad(network, None, optimizer.parameters, has_aux=True)

    def construct(self, x):
        (loss, z, onehot), grads = self.grad_fn(x)
        loss = ops.depend(loss, self.optimizer(grads))
        net, keep = self.network, self.decay
        sizes = keep * net.sizes + (1 - keep) * onehot.sum(0)
        sums = keep * net.sums + (1 - keep) * ops.matmul(onehot.T, z)
        loss = ops.depend(loss, ops.assign(net.sizes, sizes))
        loss = ops.depend(loss, ops.assign(net.sums, sums))
        return ops.depend(loss, ops.assign(net.codes, sums / (sizes[:, None] + 1e-5)))


r = np.random.RandomState(35)
x = (r.randn(6, 8)[r.randint(0, 6, 72)] + 0.2 * r.randn(72, 8)).astype(np.float32)
train = ds.NumpySlicesDataset((x,), ["x"], shuffle=True).batch(8)
net = QuantizedAutoencoder()
step = QuantizedStep(net, nn.Adam(net.trainable_params(), 1e-2))
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(step), 4, train)
os._exit(0)
