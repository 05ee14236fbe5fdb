# truth: exact
# class: random
# head: saving_pynative_dataset_parameter

rng0 = np.random.default_rng(2)
X = rng0.normal(size=(80, 6)).astype(np.float32)
loader = [Tensor(X[i : i + 8]) for i in range(0, 80, 8)]


class VAE(nn.Cell):
    def __init__(self):
        super().__init__()
        self.enc, self.dec = nn.Dense(6, 6), nn.Dense(3, 6)

    def construct(self, x, noise, capacity):
        mu, logvar = ops.split(self.enc(x), 3, axis=-1)
        z = mu + noise * ops.exp(0.5 * logvar)
        rec = ((self.dec(z) - x) ** 2).sum(-1).mean()
        kl = -0.5 * (1 + logvar - mu**2 - ops.exp(logvar)).sum(-1).mean()
        return rec + 4.0 * ops.abs(kl - capacity)


net = VAE()
opt = nn.Adam(net.trainable_params(), 0.01)
rng = np.random.default_rng(77)
grad_fn = ms.value_and_grad(net, None, opt.parameters)


def capacity():
    return min(1.0, int(opt.global_step.asnumpy().item()) / 25)


batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, opt], batches, rng=rng)
    manager.restore(state)
    for x in batches:
        _, grads = grad_fn(x, Tensor(rng.normal(size=(8, 3)).astype(np.float32)), capacity())
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
