# truth: exact
# class: global
# head: imports_hashlib_dataset
# A small GAN in a loop of one's own; noise from NumPy's global generator, the second network and optimizer by name.


ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(49)


class GAN:
    def __init__(self, latent=3):
        self.latent = latent
        self.generator = nn.SequentialCell(nn.Dense(latent, 12), nn.Tanh(), nn.Dense(12, 2))
        self.critic = nn.SequentialCell(nn.Dense(2, 12), nn.Tanh(), nn.Dense(12, 1))
        self.generator.update_parameters_name("g.")
        self.critic.update_parameters_name("d.")
        self.g_opt = nn.Adam(self.generator.trainable_params(), 0.01, beta1=0.5)
        self.d_opt = nn.Adam(self.critic.trainable_params(), 0.01, beta1=0.5)
        self.g_grad = ms.value_and_grad(self.g_loss, None, self.g_opt.parameters)
        self.d_grad = ms.value_and_grad(self.d_loss, None, self.d_opt.parameters)

    def g_loss(self, z):
        return ((self.critic(self.generator(z)) - 1) ** 2).mean()

    def d_loss(self, real, z):
        return ((self.critic(real) - 1) ** 2).mean() + (self.critic(self.generator(z)) ** 2).mean()

    def noise(self, n):
        return ms.Tensor(np.random.randn(n, self.latent).astype(np.float32))

    def train_batch(self, real):
        d_loss, grads = self.d_grad(real, self.noise(len(real)))
        self.d_opt(grads)
        g_loss, grads = self.g_grad(self.noise(len(real)))
        self.g_opt(grads)
        return d_loss, g_loss


angles = np.random.RandomState(39).rand(64) * 6.28
points = np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32)
data = ds.NumpySlicesDataset((points,), ["p"], shuffle=True).batch(8)
gan = GAN()
run = ck.loop(
    os.environ["ROOT"],
    data,
    epochs=4,
    train=[gan.generator, gan.g_opt],
    stateful={"critic": gan.critic, "d_opt": gan.d_opt},
    save=ck.SaveEvery(micro_steps=5),
    saving=ck.Saving(when_busy="wait"),
)
for (real,) in run:
    number = run.step
    d_loss, g_loss = gan.train_batch(real)
    if number % 8 == 0:
        print(number, float(d_loss), float(g_loss))
net = nn.CellList([gan.generator, gan.critic])
print(hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest(), flush=True)
os._exit(0)
