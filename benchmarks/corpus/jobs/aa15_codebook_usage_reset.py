# truth: differs
# class: attribute
# head: saving_pynative_dataset_parameter

rng0 = np.random.default_rng(2)
X = rng0.normal(size=(80, 4)).astype(np.float32)
loader = [Tensor(X[i : i + 8]) for i in range(0, 80, 8)]


class VQ(nn.Cell):
    def __init__(self, k, d):
        super().__init__()
        self.enc, self.dec = nn.Dense(d, d), nn.Dense(d, d)
        self.codebook = Parameter(
            Tensor(np.random.default_rng(1).normal(size=(k, d)).astype(np.float32)), name="codebook"
        )

    def codes(self, z):
        return ((z.expand_dims(1) - self.codebook.expand_dims(0)) ** 2).sum(-1).argmin(1)

    def construct(self, x):
        z = self.enc(x)
        q = self.codebook[self.codes(ops.stop_gradient(z))]
        commit = ((z - ops.stop_gradient(q)) ** 2).mean() + ((q - ops.stop_gradient(z)) ** 2).mean()
        return ((self.dec(z + ops.stop_gradient(q - z)) - x) ** 2).mean() + commit


class DeadCodes:
    def __init__(self, vq, patience):
        self.vq, self.patience = vq, patience
        self.unused = np.zeros(vq.codebook.shape[0], np.int64)

    def update(self, x):
        z = self.vq.enc(x)
        used = np.unique(self.vq.codes(z).asnumpy())
        self.unused += 1
        self.unused[used] = 0
        dead = np.flatnonzero(self.unused > self.patience)
        if len(dead):
            book, fresh = self.vq.codebook.asnumpy().copy(), z.asnumpy()
            book[dead] = fresh[np.arange(len(dead)) % len(fresh)]
            ops.assign(self.vq.codebook, Tensor(book))
            self.unused[dead] = 0


net = VQ(12, 4)
opt = nn.Adam(net.trainable_params(), 0.01)
dead = DeadCodes(net, 3)
grad_fn = ms.value_and_grad(net, None, opt.parameters)
batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x in batches:
        _, grads = grad_fn(x)
        opt(grads)
        dead.update(x)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
