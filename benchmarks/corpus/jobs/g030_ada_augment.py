# truth: differs
# class: random
# head: imports_ops
# A GAN with adaptive discriminator augmentation (StyleGAN2-ADA): the probability p follows the sign of D(real), as plain numbers.


ms.set_seed(52)
rng = np.random.default_rng(52)


class AdaptiveAugment:
    def __init__(self, target=0.3, speed=0.15):
        self.p = 0.2
        self.target = target
        self.speed = speed
        self._signs = []

    def __call__(self, x):
        hit = rng.random((x.shape[0], 1)) < self.p
        noise = rng.normal(0, 0.5, x.shape)
        return ms.Tensor(np.where(hit, -x + noise, x).astype(np.float32))

    def feedback(self, logits):
        self._signs.append(float(np.sign(logits).mean()))
        if len(self._signs) == 2:
            rt = sum(self._signs) / len(self._signs)
            self.p = min(max(self.p + self.speed * (1 if rt > self.target else -1), 0.0), 0.8)
            self._signs = []


class Nets(nn.Cell):
    def __init__(self):
        super().__init__()
        self.g = nn.SequentialCell(nn.Dense(3, 8), nn.ReLU(), nn.Dense(8, 5))
        self.d = nn.SequentialCell(nn.Dense(5, 8), nn.ReLU(), nn.Dense(8, 1))


nets = Nets()
g_opt = nn.Adam(nets.g.trainable_params(), learning_rate=0.01, beta1=0.5)
d_opt = nn.Adam(nets.d.trainable_params(), learning_rate=0.01, beta1=0.5)


def softplus(v):
    return ops.log(1 + ops.exp(v))


def d_loss(real, fake):
    real_logits = nets.d(real)
    return softplus(-real_logits).mean() + softplus(nets.d(fake)).mean(), real_logits


def g_loss(z):
    return softplus(-nets.d(nets.g(z))).mean()


d_vg = ms.value_and_grad(d_loss, None, nets.d.trainable_params(), has_aux=True)
g_vg = ms.value_and_grad(g_loss, None, nets.g.trainable_params())
augment = AdaptiveAugment()
reals = np.random.RandomState(0).randn(64, 5).astype(np.float32) * 0.3 + 1
batches = ck.data.resumable([(reals[i : i + 8],) for i in range(0, 64, 8)], epochs=3)

with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([nets, g_opt], batches, d_opt=d_opt, rng=rng)
    manager.restore(state)
    for (real,) in batches:
        manager.fence()
        z = ms.Tensor(rng.normal(size=(8, 3)).astype(np.float32))
        fake = nets.g(z).asnumpy()
        (loss, logits), grads = d_vg(augment(real), augment(fake))
        d_opt(grads)
        augment.feedback(logits.asnumpy())
        _, grads = g_vg(z)
        g_opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
