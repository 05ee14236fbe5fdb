# truth: differs
# class: attribute
# head: imports_ops
# A GAN with LeCam regularization: the moving averages of D(real) and D(fake) are plain numbers in the regularizer; both networks and optimizers are stored.


ms.set_seed(357)


class LeCam:
    def __init__(self, decay=0.8, weight=0.5):
        self.decay, self.weight = decay, weight
        self.real, self.fake = 0.0, 0.0

    def update(self, real, fake):
        self.real = self.decay * self.real + (1 - self.decay) * real
        self.fake = self.decay * self.fake + (1 - self.decay) * fake

    def penalty(self, d_real, d_fake):
        return self.weight * (
            ops.square(ops.relu(d_real - self.fake)).mean() + ops.square(ops.relu(self.real - d_fake)).mean()
        )


def mlp(name, *dims):
    layers = []
    for a, b in zip(dims, dims[1:]):
        layers += [nn.Dense(a, b), nn.LeakyReLU(0.2)]
    net = nn.SequentialCell(layers[:-1])
    net.update_parameters_name(name + ".")
    return net


G, D = mlp("g", 3, 8, 2), mlp("d", 2, 8, 1)
opt_g = nn.Adam(G.trainable_params(), 0.01, beta1=0.5)
opt_d = nn.Adam(D.trainable_params(), 0.02, beta1=0.5)
lecam = LeCam()


def d_loss(real, fake):
    d_real, d_fake = D(real), D(fake)
    hinge = ops.relu(1 - d_real).mean() + ops.relu(1 + d_fake).mean()
    return hinge + lecam.penalty(d_real, d_fake), d_real.mean(), d_fake.mean()


d_grad = ms.value_and_grad(d_loss, None, D.trainable_params(), has_aux=True)
g_grad = ms.value_and_grad(lambda z: -D(G(z)).mean(), None, G.trainable_params())

z_rng = np.random.default_rng(57)
r = np.random.RandomState(57)
rows = [(ms.Tensor((r.randn(8, 2) * [1.0, 0.3] + [0.5, -1]).astype(np.float32)),) for _ in range(8)]
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([G, opt_g], batches, discriminator=D, opt_d=opt_d, z_rng=z_rng)
    manager.restore(state)
    for (real,) in batches:
        z = ms.Tensor(z_rng.standard_normal((8, 3)).astype(np.float32))
        (loss, m_real, m_fake), grads = d_grad(real, ops.stop_gradient(G(z)))
        opt_d(grads)
        lecam.update(float(m_real.asnumpy()), float(m_fake.asnumpy()))
        _, grads = g_grad(z)
        opt_g(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
