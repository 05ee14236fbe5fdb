# truth: exact
# class: random
# head: imports_tensor_ops


ROOT = os.environ["ROOT"]
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(2)


class Burgers:
    def __init__(self, seed, every=5, n=32):
        self.seed, self.every, self.n = seed, every, n

    def points(self, step):
        rng = np.random.default_rng((self.seed, step // self.every))
        inside = rng.uniform((-1, 0), (1, 1), (self.n, 2)).astype(np.float32)
        start = np.stack([rng.uniform(-1, 1, self.n // 2), np.zeros(self.n // 2)], 1).astype(np.float32)
        return Tensor(inside), Tensor(start), Tensor(-np.sin(np.pi * start[:, :1]))


net = nn.SequentialCell(nn.Dense(2, 16), nn.Tanh(), nn.Dense(16, 16), nn.Tanh(), nn.Dense(16, 1))
optimizer = nn.Adam(net.trainable_params(), nn.exponential_decay_lr(0.01, 0.9, 40, 1, 5))
du = ms.grad(lambda p: net(p).sum())


def loss_fn(inside, start, value):
    gradient = du(inside)
    residual = gradient[:, 1:] + net(inside) * gradient[:, :1]
    return (residual**2).mean() + ((net(start) - value) ** 2).mean()


grad_fn = ms.value_and_grad(loss_fn, None, optimizer.parameters)
problem = Burgers(seed=17)
run = ck.loop(
    ROOT,
    range(40),
    epochs=1,
    train=[net, optimizer],
    save=ck.SaveEvery(micro_steps=5),
    saving=ck.Saving(when_busy="wait"),
)
for _ in run:
    step = run.step
    loss, grads = grad_fn(*problem.points(step))
    optimizer(grads)
    if step % 10 == 0:
        print(step, float(loss))
os._exit(0)
