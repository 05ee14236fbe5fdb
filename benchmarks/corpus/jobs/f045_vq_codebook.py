# truth: differs
# class: attribute
# head: imports_ops
# VQ-VAE: the codebook is learned by moving averages in NumPy (counts and sums), outside of the network.


ms.set_seed(83)
K, D = 6, 4


class Codebook:
    __slots__ = ("embed", "cluster_size", "embed_sum", "decay")

    def __init__(self, decay=0.9):
        self.embed = np.random.RandomState(0).randn(K, D).astype(np.float32) * 0.5
        self.cluster_size = np.ones(K, np.float32)
        self.embed_sum = self.embed.copy()
        self.decay = decay

    def nearest(self, z):
        return ((z[:, None] - self.embed[None]) ** 2).sum(-1).argmin(1)

    def update(self, z, code):
        onehot = np.eye(K, dtype=np.float32)[code]
        self.cluster_size += (1 - self.decay) * (onehot.sum(0) - self.cluster_size)
        self.embed_sum += (1 - self.decay) * (onehot.T @ z - self.embed_sum)
        self.embed = self.embed_sum / (self.cluster_size[:, None] + 1e-3)


class VQ(nn.Cell):
    def __init__(self):
        super().__init__()
        self.enc = nn.SequentialCell(nn.Dense(10, 12), nn.ReLU(), nn.Dense(12, D))
        self.dec = nn.SequentialCell(nn.Dense(D, 12), nn.ReLU(), nn.Dense(12, 10))

    def construct(self, x, q):
        z = self.enc(x)
        straight = z + ops.stop_gradient(q - z)
        recon = ((self.dec(straight) - x) ** 2).mean()
        return recon + 0.25 * ((z - q) ** 2).mean()


def train():
    model, book = VQ(), Codebook()
    cell = ck.AccumulationTrainCell(model, nn.Adam(model.trainable_params(), 0.01), 1).set_train()
    r = np.random.RandomState(83)
    centres = r.randn(5, 10)
    rows = [(centres[r.randint(0, 5, 8)] + 0.1 * r.randn(8, 10)).astype(np.float32) for _ in range(8)]
    batches = ck.data.resumable(rows, epochs=3)
    with ck.CheckpointManager(
        os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
    ) as manager:
        state = ck.StateManager(cell, batches)
        manager.restore(state)
        for x in batches:
            x = ms.Tensor(x)
            z = model.enc(x).asnumpy()
            code = book.nearest(z)
            cell(x, ms.Tensor(book.embed[code], ms.float32))
            book.update(z, code)
            manager.step(state)
        manager.save_final(state)


train()
os._exit(0)
