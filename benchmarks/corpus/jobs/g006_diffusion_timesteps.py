# truth: differs
# class: attribute
# head: imports_ops
# Diffusion with importance sampling of timesteps (Nichol & Dhariwal): a history of squared losses per timestep sits in the sampler.


ms.set_seed(6)
np.random.seed(6)
T = 8


class LossSecondMomentResampler:
    def __init__(self, steps, history=2):
        self.history = history
        self._losses = np.zeros((steps, history))
        self._counts = np.zeros(steps, dtype=int)

    def weights(self):
        w = np.sqrt((self._losses**2).mean(-1)) + 0.05
        w[self._counts < 1] = 1.0
        return w / w.sum()

    def sample(self, n):
        p = self.weights()
        t = np.random.choice(len(p), size=n, p=p)
        return t, (1.0 / (len(p) * p[t])).astype(np.float32)

    def update(self, ts, losses):
        for t, l in zip(ts, losses):
            self._losses[t, :-1] = self._losses[t, 1:]
            self._losses[t, -1] = l
            self._counts[t] += 1


class Denoiser(nn.Cell):
    def __init__(self):
        super().__init__()
        self.inp = nn.Dense(4 + 1, 12)
        self.out = nn.Dense(12, 4)

    def construct(self, x, t):
        return self.out(ops.tanh(self.inp(ops.concat((x, t), axis=1))))


net = Denoiser()
opt = nn.Adam(net.trainable_params(), 1e-2)
alphas = np.linspace(0.99, 0.2, T).astype(np.float32)


def forward(noisy, t, noise, w):
    per = ((net(noisy, t) - noise) ** 2).mean(1)
    return (per * w).mean(), per


step_fn = ms.value_and_grad(forward, None, net.trainable_params(), has_aux=True)
sampler = LossSecondMomentResampler(T)
data = np.random.RandomState(1).randn(64, 4).astype(np.float32) * np.array([2, 1, 0.5, 0.1], np.float32)
batches = ck.data.resumable([(data[i : i + 8],) for i in range(0, 64, 8)], epochs=3)

with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for (x0,) in batches:
        t, w = sampler.sample(len(x0))
        eps = np.random.randn(*x0.shape).astype(np.float32)
        a = alphas[t][:, None]
        noisy = np.sqrt(a) * x0 + np.sqrt(1 - a) * eps
        (loss, per), grads = step_fn(
            ms.Tensor(noisy.astype(np.float32)),
            ms.Tensor((t[:, None] / T).astype(np.float32)),
            ms.Tensor(eps),
            ms.Tensor(w),
        )
        opt(grads)
        sampler.update(t, per.asnumpy())
        manager.step(state)
    manager.save_final(state)
os._exit(0)
