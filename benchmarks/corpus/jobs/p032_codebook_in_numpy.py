# truth: differs
# class: global
# head: pynative_dataset_ops
# A VQ autoencoder whose codebook is moved by running averages of its clusters.

ms.set_seed(132)


class Codebook(nn.Cell):
    def __init__(self, codes, width, decay=0.9):
        super().__init__()
        start = np.random.RandomState(32).randn(codes, width).astype(np.float32)
        self.weight = ms.Parameter(ms.Tensor(start), name="codebook", requires_grad=False)
        self.decay = decay
        self.cluster_size = np.ones(codes, np.float32)
        self.cluster_sum = start.copy()

    def nearest(self, z):
        return ((z[:, None] - self.weight.asnumpy()[None]) ** 2).sum(-1).argmin(1)

    def update(self, z, chosen):
        onehot = np.eye(len(self.cluster_size), dtype=np.float32)[chosen]
        self.cluster_size = self.decay * self.cluster_size + (1 - self.decay) * onehot.sum(0)
        self.cluster_sum = self.decay * self.cluster_sum + (1 - self.decay) * (onehot.T @ z)
        ops.assign(self.weight, ms.Tensor(self.cluster_sum / (self.cluster_size[:, None] + 1e-5)))


class VQStep(nn.Cell):
    def __init__(self, encoder, decoder, codebook, optimizer):
        super().__init__()
        self.encoder, self.decoder, self.codebook, self.optimizer = encoder, decoder, codebook, optimizer
        self.grad_fn = ms.value_and_grad(self.loss, None, optimizer.parameters)

    def loss(self, x, quantized):
        z = self.encoder(x)
        through = z + ops.stop_gradient(quantized - z)
        return ((self.decoder(through) - x) ** 2).mean() + 0.25 * ((z - quantized) ** 2).mean()

    def construct(self, x):
        z = self.encoder(x).asnumpy()
        chosen = self.codebook.nearest(z)
        quantized = ms.Tensor(self.codebook.weight.asnumpy()[chosen])
        loss, grads = self.grad_fn(x, quantized)
        self.optimizer(grads)
        self.codebook.update(z, chosen)
        return loss


r = np.random.RandomState(33)
x = (r.randn(6, 8)[r.randint(0, 6, 80)] + 0.2 * r.randn(80, 8)).astype(np.float32)
train = ds.NumpySlicesDataset((x,), ["x"], shuffle=True).batch(8)
encoder, decoder = nn.Dense(8, 3), nn.Dense(3, 8)
encoder.update_parameters_name("encoder.")
decoder.update_parameters_name("decoder.")
optimizer = nn.Adam(encoder.trainable_params() + decoder.trainable_params(), 1e-2)
step = VQStep(encoder, decoder, Codebook(6, 3), optimizer)
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
with ckpt.attach():
    ms.Model(step).train(4, train)
os._exit(0)
