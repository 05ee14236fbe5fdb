# truth: exact
# class: random
# head: imports_random_ops
# A VAE that draws its noise by ops.standard_normal in PYNATIVE and corrupts its input by Python's random.


ms.set_seed(24)
random.seed(24)
ms.set_context(mode=ms.PYNATIVE_MODE)


class VAE(nn.Cell):
    def __init__(self, n=12, h=10, z=3):
        super().__init__()
        self.enc = nn.Dense(n, h, activation="tanh")
        self.mu = nn.Dense(h, z)
        self.logvar = nn.Dense(h, z)
        self.dec = nn.SequentialCell(nn.Dense(z, h), nn.Tanh(), nn.Dense(h, n))

    def construct(self, x, clean):
        h = self.enc(x)
        mu, logvar = self.mu(h), ops.clamp(self.logvar(h), -3, 3)
        eps = ops.standard_normal(mu.shape)
        recon = self.dec(mu + eps * ops.exp(0.5 * logvar))
        kl = -0.5 * (1 + logvar - mu * mu - ops.exp(logvar)).mean()
        return ((recon - clean) ** 2).mean() + 0.1 * kl


def drop_columns(x, n=2):
    x = x.copy()
    for c in random.sample(range(x.shape[1]), n):
        x[:, c] = 0
    return x


vae = VAE()
cell = ck.AccumulationTrainCell(vae, nn.Adam(vae.trainable_params(), 0.01), 3).set_train()
r = np.random.RandomState(24)
rows = [np.sin(np.outer(r.rand(5) * 3, np.arange(12))).astype(np.float32) for _ in range(8)]
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for x in batches:
        cell(ms.Tensor(drop_columns(x)), ms.Tensor(x))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
