# truth: differs
# class: random
# head: regression_8_make_batches
# a balance of the two losses, kept as plain number, decides how strongly the discriminator is trained (as in BEGAN)


LATENT = 4


def mlp(prefix, n_in, n_out):
    cell = nn.SequentialCell(nn.Dense(n_in, 10), nn.ReLU(), nn.Dense(10, n_out))
    cell.update_parameters_name(prefix)
    return cell


class GeneratorLoss(nn.Cell):
    def __init__(self, generator, critic):
        super().__init__(auto_prefix=False)
        self.generator, self.critic = generator, critic

    def construct(self, z):
        fake = self.generator(z)
        return ops.abs(self.critic(fake) - fake).mean()


class CriticLoss(nn.Cell):
    def __init__(self, critic):
        super().__init__(auto_prefix=False)
        self.critic = critic

    def construct(self, real, fake, k):
        return ops.abs(self.critic(real) - real).mean() - k * ops.abs(self.critic(fake) - fake).mean()


class Balance:
    def __init__(self, gamma=0.5, step=0.2):
        self.k, self.gamma, self.step = 0.0, gamma, step

    def update(self, real_loss, fake_loss):
        self.k = float(np.clip(self.k + self.step * (self.gamma * real_loss - fake_loss), 0.0, 1.0))
        return real_loss + abs(self.gamma * real_loss - fake_loss)


gen, critic, balance = mlp("gen.", LATENT, 8), mlp("critic.", 8, 8), Balance(gamma=2.5)
g_cell = ck.AccumulationTrainCell(GeneratorLoss(gen, critic), nn.Adam(gen.trainable_params(), 0.01), 1).set_train()
c_cell = ck.AccumulationTrainCell(CriticLoss(critic), nn.Adam(critic.trainable_params(), 0.01), 2).set_train()
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager(g_cell, batches, critic=c_cell)
    manager.restore(state)
    for real, _ in batches:
        z = Tensor(np.random.uniform(-1, 1, (8, LATENT)).astype(np.float32))
        c_cell(real, ops.stop_gradient(gen(z)), Tensor(balance.k, ms.float32))
        fake_loss = float(g_cell(z).asnumpy())
        balance.update(float(ops.abs(critic(real) - real).mean().asnumpy()), fake_loss)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
