# truth: exact
# class: random
# head: pynative_ops
# WGAN with gradient penalty in a loop: two networks, two optimizers (one of them by name), noise and interpolation from a generator given by name, the critic's rhythm from the position.

ms.set_seed(3507)
LATENT, WIDTH, BATCH = 3, 2, 8


class Gan(nn.Cell):
    def __init__(self):
        super().__init__()
        self.generator = nn.SequentialCell(nn.Dense(LATENT, 12), nn.ReLU(), nn.Dense(12, WIDTH))
        self.critic = nn.SequentialCell(nn.Dense(WIDTH, 12), nn.Tanh(), nn.Dense(12, 1))


def main(root):
    r = np.random.RandomState(7)
    angle = r.rand(BATCH * 8) * 2 * np.pi
    ring = np.stack([np.cos(angle), np.sin(angle)], 1) + 0.05 * r.randn(BATCH * 8, 2)
    rows = [ms.Tensor(part.astype(np.float32)) for part in np.split(ring, 8)]

    gan = Gan()
    g_opt = nn.Adam(gan.generator.trainable_params(), 0.01, beta1=0.5)
    c_opt = nn.Adam(gan.critic.trainable_params(), 0.01, beta1=0.5)
    input_gradient = ms.grad(lambda points: gan.critic(points).sum())

    def critic_loss(real, fake, mix):
        slope = input_gradient(mix * real + (1 - mix) * fake)
        penalty = ((ops.sqrt((slope**2).sum(1) + 1e-8) - 1) ** 2).mean()
        return gan.critic(fake).mean() - gan.critic(real).mean() + 10 * penalty

    def generator_loss(z):
        return -gan.critic(gan.generator(z)).mean()

    critic_step = ms.value_and_grad(critic_loss, None, gan.critic.trainable_params())
    generator_step = ms.value_and_grad(generator_loss, None, gan.generator.trainable_params())
    rng = np.random.default_rng(3507)

    def noise():
        return ms.Tensor(rng.standard_normal((BATCH, LATENT)).astype(np.float32))

    batches = ck.data.resumable(rows, epochs=4)
    with ck.CheckpointManager(root, save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")) as manager:
        state = ck.StateManager([gan, c_opt], batches, g_opt=g_opt, rng=rng)
        point = manager.restore(state)
        for number, real in enumerate(batches, point.batches_delivered):
            fake = ops.stop_gradient(gan.generator(noise()))
            mix = ms.Tensor(rng.random((BATCH, 1)).astype(np.float32))
            loss, grads = critic_step(real, fake, mix)
            c_opt(grads)
            if number % 3 == 2:
                loss, grads = generator_step(noise())
                g_opt(grads)
            manager.step(state)
        manager.save_final(state)


main(os.environ["ROOT"])
os._exit(0)
