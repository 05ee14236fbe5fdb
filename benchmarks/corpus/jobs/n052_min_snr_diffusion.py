# truth: exact
# class: global
# head: pynative_ops
# Diffusion with min-SNR weights: timesteps and noise from NumPy's global generator, averaged weights in a cell of the list; losses per timestep are kept for a table only.

ms.set_seed(4452)
np.random.seed(4452)
STEPS, WIDTH, GAMMA = 20, 4, 5.0

ALPHA_BAR = np.cumprod(1 - np.linspace(1e-3, 0.25, STEPS))
SNR = ALPHA_BAR / (1 - ALPHA_BAR)
MIN_SNR = np.minimum(SNR, GAMMA) / SNR


class Denoiser(nn.Cell):
    def __init__(self):
        super().__init__()
        self.body = nn.SequentialCell(nn.Dense(WIDTH + 2, 16), nn.Tanh(), nn.Dense(16, WIDTH))

    def construct(self, noisy, time):
        return self.body(ops.concat((noisy, time), 1))


class Average(nn.Cell):
    def __init__(self, net, decay):
        super().__init__()
        self.decay = decay
        self.slow = ms.ParameterTuple(
            [ms.Parameter(p.asnumpy().copy(), name=f"ema.{p.name}", requires_grad=False) for p in net.get_parameters()]
        )

    def follow(self, net):
        for slow, p in zip(self.slow, net.get_parameters()):
            ops.assign(slow, self.decay * slow + (1 - self.decay) * p)


def embed(t):
    return np.stack([np.sin(t / 3), np.cos(t / 3)], 1)


def forward(noisy, time, noise, weight):
    return (((net(noisy, time) - noise) ** 2).mean(1) * weight).mean()


def tensor(array):
    return ms.Tensor(array.astype(np.float32))


r = np.random.RandomState(52)
clean = r.randn(48, 2) @ r.randn(2, WIDTH)
rows = [clean[i : i + 6] for i in range(0, 48, 6)]
net = Denoiser()
average = Average(net, 0.95)
opt = nn.Adam(net.trainable_params(), 0.01)
gradients = ms.value_and_grad(forward, None, net.trainable_params())
by_time = {}

batches = ck.data.resumable(rows, epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt, average], batches)
    manager.restore(state)
    for x in batches:
        x = np.asarray(x)
        t = np.random.randint(0, STEPS, len(x))
        noise = np.random.randn(*x.shape)
        noisy = np.sqrt(ALPHA_BAR[t])[:, None] * x + np.sqrt(1 - ALPHA_BAR[t])[:, None] * noise
        loss, grads = gradients(tensor(noisy), tensor(embed(t)), tensor(noise), tensor(MIN_SNR[t]))
        opt(grads)
        manager.fence()
        average.follow(net)
        by_time.setdefault(int(t.mean()), []).append(float(loss.asnumpy()))
        manager.step(state)
    manager.save_final(state)
for t in sorted(by_time):
    print(f"about t = {t}: {np.mean(by_time[t]):.4f}")
os._exit(0)
