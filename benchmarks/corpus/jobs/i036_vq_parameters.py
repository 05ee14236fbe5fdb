# truth: exact
# class: attribute
# head: imports_parameter
# A VQ autoencoder whose codebook, cluster sizes and sums are Parameters without gradient, moved by averages inside construct; PYNATIVE.


ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(336)


class VectorQuantizer(nn.Cell):
    def __init__(self, codes, dim, decay=0.9):
        super().__init__()
        book = np.random.RandomState(36).randn(codes, dim).astype(np.float32) * 0.5
        self.codes, self.decay = codes, decay
        self.codebook = Parameter(Tensor(book), name="codebook", requires_grad=False)
        self.sizes = Parameter(Tensor(np.ones(codes, np.float32)), name="sizes", requires_grad=False)
        self.sums = Parameter(Tensor(book.copy()), name="sums", requires_grad=False)

    def construct(self, z):
        d = ((z.expand_dims(1) - self.codebook.expand_dims(0)) ** 2).sum(-1)
        onehot = (ops.arange(self.codes).expand_dims(0) == d.argmin(-1).expand_dims(1)).astype(ms.float32)
        quantized = ops.matmul(onehot, self.codebook)
        if self.training:
            frozen = ops.stop_gradient(z)
            ops.assign(self.sizes, self.decay * self.sizes + (1 - self.decay) * onehot.sum(0))
            ops.assign(self.sums, self.decay * self.sums + (1 - self.decay) * ops.matmul(onehot.T, frozen))
            ops.assign(self.codebook, self.sums / (self.sizes + 1e-3).expand_dims(1))
        return z + ops.stop_gradient(quantized - z), ((ops.stop_gradient(quantized) - z) ** 2).mean()


class VQLoss(nn.Cell):
    def __init__(self):
        super().__init__()
        self.encoder = nn.SequentialCell(nn.Dense(6, 8), nn.Tanh(), nn.Dense(8, 3))
        self.vq = VectorQuantizer(8, 3)
        self.decoder = nn.Dense(3, 6)

    def construct(self, x):
        z, commit = self.vq(self.encoder(x))
        return ((self.decoder(z) - x) ** 2).mean() + 0.25 * commit


model = VQLoss().set_train()
opt = nn.Adam(model.trainable_params(), 0.01)
vg = ms.value_and_grad(model, None, model.trainable_params())
r = np.random.RandomState(1)
rows = [(Tensor((r.randn(8, 2) @ np.ones((2, 6)) + r.randn(8, 6) * 0.3).astype(np.float32)),) for _ in range(8)]

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([model, opt], batches)
    manager.restore(state)
    for (x,) in batches:
        loss, grads = vg(x)
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
