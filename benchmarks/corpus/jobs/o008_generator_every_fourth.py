# truth: differs
# class: random
# head: pynative_dataset_ops
# A least-squares GAN in one train cell for Model.train: the discriminator learns at each call, the generator at every fourth; an int of the cell counts the calls.

ms.set_seed(3508)


class Networks(nn.Cell):
    def __init__(self):
        super().__init__()
        self.g = nn.SequentialCell(nn.Dense(2, 10), nn.LeakyReLU(), nn.Dense(10, 3))
        self.d = nn.SequentialCell(nn.Dense(3, 10), nn.LeakyReLU(), nn.Dense(10, 1))


class GanStep(nn.Cell):
    def __init__(self, networks, g_opt, d_opt, every):
        super().__init__(auto_prefix=False)
        self.networks, self.g_opt, self.d_opt = networks, g_opt, d_opt
        self.every, self.calls = every, 0
        self.d_grad = ms.value_and_grad(self.d_loss, None, d_opt.parameters)
        self.g_grad = ms.value_and_grad(self.g_loss, None, g_opt.parameters)

    def d_loss(self, real, z):
        fake = ops.stop_gradient(self.networks.g(z))
        return ((self.networks.d(real) - 1) ** 2).mean() + (self.networks.d(fake) ** 2).mean()

    def g_loss(self, z):
        return ((self.networks.d(self.networks.g(z)) - 1) ** 2).mean()

    def construct(self, real, z):
        loss, grads = self.d_grad(real, z)
        self.d_opt(grads)
        self.calls += 1
        if self.calls % self.every == 0:
            _, grads = self.g_grad(z)
            self.g_opt(grads)
        return loss


networks = Networks()
g_opt = nn.Momentum(networks.g.trainable_params(), 0.05, 0.5)
d_opt = nn.Momentum(networks.d.trainable_params(), 0.05, 0.5)
for p in (*d_opt.moments, d_opt.learning_rate, d_opt.global_step):
    p.name = "d_opt." + p.name
r = np.random.RandomState(8)
real = (r.randn(54, 3) @ np.array([[1, 0.5, 0], [0, 1, 0.5], [0, 0, 0.2]]) + 1).astype(np.float32)
z = r.randn(54, 2).astype(np.float32)
train = ds.NumpySlicesDataset((real, z), ["real", "z"], shuffle=True).batch(6)

ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(GanStep(networks, g_opt, d_opt, every=4)), 4, train)
os._exit(0)
