# truth: differs
# class: iterator
# head: imports_random_ops
# A GAN with CycleGAN's pool of old fakes; both train cells are given by name, the pool of 50 images is not.


ms.set_seed(64)
random.seed(64)


class ImagePool:
    """Returns a stored old fake with probability 1/2, as in the official code."""

    def __init__(self, pool_size=12):
        self.pool_size = pool_size
        self.images = []

    def query(self, images):
        out = []
        for image in images:
            if len(self.images) < self.pool_size:
                self.images.append(image)
                out.append(image)
            elif random.uniform(0, 1) > 0.5:
                k = random.randint(0, self.pool_size - 1)
                out.append(self.images[k].copy())
                self.images[k] = image
            else:
                out.append(image)
        return np.stack(out)


class D(nn.Cell):
    def __init__(self):
        super().__init__()
        self.body = nn.SequentialCell(nn.Dense(6, 10), nn.LeakyReLU(0.2), nn.Dense(10, 1))

    def construct(self, real, fake):
        return ((self.body(real) - 1) ** 2).mean() + (self.body(fake) ** 2).mean()


class G(nn.Cell):
    def __init__(self, critic):
        super().__init__()
        self.body = nn.SequentialCell(nn.Dense(3, 10), nn.ReLU(), nn.Dense(10, 6))
        self.critic = [critic]  # in a list, so that its parameters are not ours

    def construct(self, z):
        return ((self.critic[0](self.body(z)) - 1) ** 2).mean()


d = D()
d.update_parameters_name("d.")
g = G(d.body)
g.body.update_parameters_name("g.")
d_cell = ck.AccumulationTrainCell(d, nn.Adam(d.trainable_params(), 0.005, beta1=0.5), 1).set_train()
g_cell = ck.AccumulationTrainCell(g, nn.Adam(g.body.trainable_params(), 0.005, beta1=0.5), 1).set_train()
pool = ImagePool()

r = np.random.RandomState(64)
rows = [(np.abs(r.randn(4, 6)).astype(np.float32), r.randn(4, 3).astype(np.float32)) for _ in range(8)]
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(g_cell, batches, discriminator=d_cell)
    manager.restore(state)
    for real, z in batches:
        g_cell(ms.Tensor(z))
        fake = pool.query(g.body(ms.Tensor(z)).asnumpy())
        d_cell(ms.Tensor(real), ms.Tensor(fake))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
