# truth: differs
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


class GANTrainer:
    n_critic = 3

    def __init__(self):
        self.iteration = 0
        self.d_grad = ms.value_and_grad(self.critic_loss, None, opt_d.parameters)
        self.g_grad = ms.value_and_grad(self.generator_loss, None, opt_g.parameters)

    def critic_loss(self, real, fake):
        return D(fake).mean() - D(real).mean()

    def generator_loss(self, noise):
        return -D(G(noise)).mean()

    def train_step(self, real):
        _, grads = self.d_grad(real, ops.stop_gradient(G(z())))
        opt_d(grads)
        for p in D.trainable_params():
            ops.assign(p, ops.clamp(p, -0.3, 0.3))
        self.iteration += 1
        if self.iteration % self.n_critic == 0 or self.iteration < 5:
            _, grads = self.g_grad(z())
            opt_g(grads)


trainer = GANTrainer()
batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([G, D, opt_g], batches, opt_d=opt_d, noise=noise)
    manager.restore(state)
    for real in batches:
        trainer.train_step(real)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
