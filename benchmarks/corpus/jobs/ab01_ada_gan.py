# truth: exact, may be named
# class: random
# head: saving_pynative_dataset_parameter

rng0 = np.random.default_rng(8)
REAL = rng0.normal(1.0, 0.3, size=(80, 2)).astype(np.float32)
loader = [Tensor(REAL[i : i + 8]) for i in range(0, 80, 8)]
G = nn.SequentialCell(nn.Dense(3, 8), nn.ReLU(), nn.Dense(8, 2))
D = nn.SequentialCell(nn.Dense(2, 8), nn.LeakyReLU(), nn.Dense(8, 1))
G.update_parameters_name("g.")
D.update_parameters_name("d.")
opt_g, opt_d = nn.Adam(G.trainable_params(), 2e-3, beta1=0.5), nn.Adam(D.trainable_params(), 2e-3, beta1=0.5)
noise = np.random.default_rng(15)


def z(n=8):
    return Tensor(noise.normal(size=(n, 3)).astype(np.float32))


class AdaptiveAugment:
    def __init__(self, target=0.6, interval=3, speed=0.1):
        self.p, self.target, self.interval, self.speed = 0.0, target, interval, speed
        self.signs = []

    def __call__(self, x):
        return x + self.p * 0.2 * ops.flip(x, (1,))

    def tick(self, d_real):
        self.signs.append(float(ops.sign(d_real).mean()))
        if len(self.signs) == self.interval:
            self.p = min(1.0, max(0.0, self.p + self.speed * np.sign(np.mean(self.signs) - self.target)))
            self.signs.clear()


ada = AdaptiveAugment(target=-0.2)


def d_loss(real, fake):
    r, f = D(ada(real)), D(ada(fake))
    return (ops.relu(1 - r) + ops.relu(1 + f)).mean(), r


def g_loss(noise):
    return -D(ada(G(noise))).mean()


d_grad = ms.value_and_grad(d_loss, None, opt_d.parameters, has_aux=True)
g_grad = ms.value_and_grad(g_loss, None, opt_g.parameters)
batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([G, D, opt_g], batches, opt_d=opt_d, noise=noise)
    manager.restore(state)
    for real in batches:
        (_, r), grads = d_grad(real, ops.stop_gradient(G(z())))
        opt_d(grads)
        ada.tick(r)
        _, grads = g_grad(z())
        opt_g(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
