# truth: differs
# class: attribute
# head: pynative_dataset_ops
# A GAN with adaptive discriminator augmentation: noise is added with a probability that follows the overfitting.

ms.set_seed(152)


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


class AdaptiveAugment:
    def __init__(self, target=0.1, speed=0.08):
        self.target, self.speed, self.p = target, speed, 0.0

    def __call__(self, x):
        apply = np.random.rand(len(x), 1) < self.p
        return ms.Tensor((x + apply * np.random.randn(*x.shape) * 0.3).astype(np.float32))

    def adjust(self, scores):
        sign = np.sign(scores - 0.5).mean()
        self.p = float(np.clip(self.p + self.speed * np.sign(sign - self.target), 0.0, 0.8))


G = nn.SequentialCell(nn.Dense(4, 16), nn.Tanh(), nn.Dense(16, 2))
D = nn.SequentialCell(nn.Dense(2, 16), nn.Tanh(), nn.Dense(16, 1))
G.update_parameters_name("g.")
D.update_parameters_name("d.")
generator = ck.AccumulationTrainCell(GeneratorLoss(G, D), nn.Adam(G.trainable_params(), 3e-3), 2).set_train()
discriminator = ck.AccumulationTrainCell(DiscriminatorLoss(D), nn.Adam(D.trainable_params(), 6e-3), 1).set_train()
r = np.random.RandomState(53)
points = (r.randn(80, 2) * 0.3 + np.array([1.0, -1.0])).astype(np.float32)
train = ds.NumpySlicesDataset((points,), ["point"], shuffle=True).batch(8)
augment = AdaptiveAugment()

batches = ck.data.resumable(train, epochs=4)
save, saving = ck.SaveEvery(micro_steps=5), ck.Saving(when_busy="wait")
with ck.CheckpointManager(os.environ["ROOT"], save=save, saving=saving) as manager:
    state = ck.StateManager(generator, batches, discriminator=discriminator)
    manager.restore(state)
    for (real,) in batches:
        z = ops.randn(8, 4)
        discriminator(augment(real.asnumpy()), augment(G(z).asnumpy()))
        augment.adjust(D(real).asnumpy())
        generator(z)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
