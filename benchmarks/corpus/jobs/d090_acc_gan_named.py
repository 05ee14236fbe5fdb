# truth: exact
# class: global
# head: regression_8_make_batches
# the generator's cell comes first, the discriminator's by name; noise comes from NumPy's global generator


LATENT = 4


def mlp(prefix, n_in, n_out):
    cell = nn.SequentialCell(nn.Dense(n_in, 10), nn.ReLU(), nn.Dense(10, n_out))
    cell.update_parameters_name(prefix)
    return cell


class GeneratorLoss(nn.Cell):
    def __init__(self, generator, discriminator):
        super().__init__(auto_prefix=False)
        self.generator, self.discriminator = generator, discriminator

    def construct(self, z):
        return ((self.discriminator(self.generator(z)) - 1) ** 2).mean()


class DiscriminatorLoss(nn.Cell):
    def __init__(self, discriminator):
        super().__init__(auto_prefix=False)
        self.discriminator = discriminator

    def construct(self, real, fake):
        return ((self.discriminator(real) - 1) ** 2).mean() + (self.discriminator(fake) ** 2).mean()


gen, disc = mlp("generator.", LATENT, 8), mlp("discriminator.", 8, 1)
g_cell = ck.AccumulationTrainCell(GeneratorLoss(gen, disc), nn.Adam(gen.trainable_params(), 0.01), 2).set_train()
d_cell = ck.AccumulationTrainCell(DiscriminatorLoss(disc), nn.Adam(disc.trainable_params(), 0.01), 3).set_train()
np.random.seed(6)
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager(g_cell, batches, discriminator=d_cell)
    manager.restore(state)
    for real, _ in batches:
        z = Tensor(np.random.normal(size=(len(real), LATENT)).astype(np.float32))
        d_cell(real, ops.stop_gradient(gen(z)))
        g_cell(z)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
