# truth: differs
# class: data
# head: regression_8_make_batches
# the sampler of the reparametrisation noise owns a generator that is not given by name



class GaussianSampler:
    def __init__(self, seed, truncation=2.0):
        self._rng = np.random.Generator(np.random.PCG64(seed))
        self.truncation = truncation

    def __call__(self, *shape):
        eps = self._rng.standard_normal(shape).clip(-self.truncation, self.truncation)
        return Tensor(eps.astype(np.float32))


class VAE(nn.Cell):
    def __init__(self, dim=8, latent=3):
        super().__init__()
        self.latent = latent
        self.encode_mu, self.encode_scale = nn.Dense(dim, latent), nn.Dense(dim, latent)
        self.decode = nn.SequentialCell(nn.Dense(latent, 12), nn.ReLU(), nn.Dense(12, dim))

    def construct(self, x, eps):
        mu, scale = self.encode_mu(x), ops.tanh(self.encode_scale(x))
        return self.decode(mu + scale * eps), mu, scale


vae = VAE()
sampler = GaussianSampler(seed=6)
optimizer = nn.Adam(vae.trainable_params(), 0.01)


def elbo(x, eps):
    out, mu, scale = vae(x, eps)
    return ((out - x) ** 2).mean() + 0.01 * (mu**2 + (scale - 1) ** 2).mean()


grad_fn = ms.value_and_grad(elbo, None, optimizer.parameters)
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([vae, optimizer], batches)
    manager.restore(state)
    for x, _ in batches:
        loss, grads = grad_fn(x, sampler(len(x), vae.latent))
        optimizer(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
