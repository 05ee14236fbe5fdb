# truth: differs
# class: attribute
# head: imports_hashlib_dataset
# A descriptor that anneals its value a little each time somebody reads it.


ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(23)


class Annealed:
    def __init__(self, start, end, rate):
        self.start, self.end, self.rate = start, end, rate

    def __set_name__(self, owner, name):
        self.slot = "_" + name

    def __get__(self, instance, owner=None):
        if instance is None:
            return self
        value = instance.__dict__.get(self.slot, self.start)
        instance.__dict__[self.slot] = self.end + (value - self.end) * self.rate
        return value


class Recipe:
    beta = Annealed(0.0, 1.0, 0.9)
    noise = Annealed(0.5, 0.0, 0.85)


r = np.random.RandomState(13)
x = r.randn(60, 8).astype(np.float32)
data = ds.NumpySlicesDataset((x,), ["x"], shuffle=True).batch(6)
encoder, decoder = nn.Dense(8, 4), nn.Dense(2, 8)
net = nn.CellList([encoder, decoder])
opt = nn.Adam(net.trainable_params(), 0.01)
recipe = Recipe()


def forward(x, eps, beta):
    h = encoder(x)
    mu, logvar = h[:, :2], h[:, 2:]
    z = mu + eps * (0.5 * logvar).exp()
    kl = (mu * mu + logvar.exp() - logvar - 1).mean()
    return ((decoder(z) - x) ** 2).mean() + beta * kl


grad_fn = ms.value_and_grad(forward, None, opt.parameters)
batches = ck.data.resumable(data, epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for (a,) in batches:
        eps = ms.Tensor((np.random.randn(a.shape[0], 2) * (1 + recipe.noise)).astype(np.float32))
        loss, grads = grad_fn(a, eps, recipe.beta)
        opt(grads)
        manager.step(state)
    manager.save_final(state)
print(hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest(), flush=True)
os._exit(0)
