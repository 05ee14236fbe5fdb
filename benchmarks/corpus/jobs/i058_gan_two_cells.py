# truth: exact
# class: random
# head: imports_ops
# A least-squares GAN with two optimizers in a trainer with inheritance; everything that has weights is in the state, noise is made from (seed, epoch, place).


ms.set_seed(358)


class AbstractGAN:
    noise_dim = 3

    def __init__(self):
        self.G = self.build_generator()
        self.D = self.build_discriminator()
        self.G.update_parameters_name("generator.")
        self.D.update_parameters_name("discriminator.")
        self.opt_G, self.opt_D = self.configure_optimizers()
        self.step_D = ms.value_and_grad(self.loss_D, None, self.D.trainable_params())
        self.step_G = ms.value_and_grad(self.loss_G, None, self.G.trainable_params())
        self.log = []

    def configure_optimizers(self):
        return nn.Adam(self.G.trainable_params(), 0.01), nn.Adam(self.D.trainable_params(), 0.01)

    def noise(self, epoch, place, n):
        z = ck.data.sample_rng(358, epoch, place).standard_normal((n, self.noise_dim))
        return ms.Tensor(z.astype(np.float32))

    def train_on(self, real, epoch, place):
        z = self.noise(epoch, place, real.shape[0])
        loss_d, grads = self.step_D(real, ops.stop_gradient(self.G(z)))
        self.opt_D(grads)
        loss_g, grads = self.step_G(z)
        self.opt_G(grads)
        self.log.append((float(loss_d.asnumpy()), float(loss_g.asnumpy())))


class LSGAN(AbstractGAN):
    def build_generator(self):
        return nn.SequentialCell(nn.Dense(self.noise_dim, 8), nn.Tanh(), nn.Dense(8, 2))

    def build_discriminator(self):
        return nn.SequentialCell(nn.Dense(2, 8), nn.LeakyReLU(0.2), nn.Dense(8, 1))

    def loss_D(self, real, fake):
        return ((self.D(real) - 1) ** 2).mean() + (self.D(fake) ** 2).mean()

    def loss_G(self, z):
        return ((self.D(self.G(z)) - 1) ** 2).mean()


gan = LSGAN()
r = np.random.RandomState(58)
rows = [(ms.Tensor((0.5 * r.randn(8, 2) + [1, -1]).astype(np.float32)),) for _ in range(8)]
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([gan.G, gan.opt_G], batches, discriminator=gan.D, opt_D=gan.opt_D)
    point = manager.restore(state)
    for at, (real,) in enumerate(batches, point.batches_delivered):
        gan.train_on(real, *divmod(at, len(rows)))
        manager.step(state)
    print("last losses", gan.log[-1])
    manager.save_final(state)
os._exit(0)
