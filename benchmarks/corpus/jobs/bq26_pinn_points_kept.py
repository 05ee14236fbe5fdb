# truth: differs
# class: random
# head: imports_tensor_ops


ROOT = os.environ["ROOT"]
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(2)


class PINN(nn.Cell):
    """u'' + u = 0, u(0) = 0, u'(0) = 1."""

    def __init__(self, width=12):
        super().__init__()
        self.net = nn.SequentialCell(
            nn.Dense(1, width), nn.Tanh(), nn.Dense(width, width), nn.Tanh(), nn.Dense(width, 1)
        )

    def construct(self, t):
        return self.net(t)


net = PINN()
optimizer = nn.Adam(net.trainable_params(), 0.005)
H = 0.05


def residual(t):
    second = (net(t + H) - 2 * net(t) + net(t - H)) / H**2
    return second + net(t)


def loss_fn(points):
    zero = ops.zeros((1, 1))
    start = net(zero) ** 2 + ((net(zero + H) - net(zero - H)) / (2 * H) - 1) ** 2
    return (residual(points) ** 2).mean() + 10 * start.sum()


grad_fn = ms.value_and_grad(loss_fn, None, optimizer.parameters)
rng = np.random.default_rng(0)


def resample(n=24, pool=200):
    """Half uniform, half where the residual is large."""
    candidates = rng.uniform(0, 3, (pool, 1)).astype(np.float32)
    error = np.abs(residual(Tensor(candidates)).asnumpy())[:, 0]
    hard = rng.choice(pool, n // 2, replace=False, p=error / error.sum())
    return Tensor(np.concatenate([rng.uniform(0, 3, (n - n // 2, 1)).astype(np.float32), candidates[hard]]))


points = resample()
run = ck.loop(
    ROOT,
    range(40),
    epochs=1,
    train=[net, optimizer],
    stateful={"rng": rng},
    save=ck.SaveEvery(micro_steps=5),
    saving=ck.Saving(when_busy="wait"),
)
for _ in run:
    step = run.step
    if step > 0 and step % 10 == 0:
        points = resample()
    loss, grads = grad_fn(points)
    optimizer(grads)
    if step % 10 == 9:
        print(step, float(loss))
os._exit(0)
