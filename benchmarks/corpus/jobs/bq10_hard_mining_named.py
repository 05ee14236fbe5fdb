# truth: exact
# class: random
# head: imports_tensor_ops


ROOT = os.environ["ROOT"]
ms.set_seed(12)


class HardMiner:
    """Draws samples by the loss that they had when they were last seen."""

    def __init__(self, size, temperature=0.5, seed=0):
        self.losses = np.full(size, 1.0)
        self.seen = np.zeros(size, np.int64)
        self.temperature = temperature
        self.rng = np.random.default_rng(seed)

    def sample(self, n):
        weights = np.exp(self.losses / self.temperature) + 1.0 / (1 + self.seen)
        return self.rng.choice(len(weights), n, replace=False, p=weights / weights.sum())

    def update(self, index, losses):
        self.losses[index] = 0.5 * self.losses[index] + 0.5 * losses
        self.seen[index] += 1


rng0 = np.random.default_rng(3)
X = rng0.normal(size=(100, 6)).astype(np.float32)
Y = (X[:, :1] ** 2 - X[:, 1:2]).astype(np.float32)
net = nn.SequentialCell(nn.Dense(6, 16), nn.ReLU(), nn.Dense(16, 1))
opt = nn.Adam(net.trainable_params(), 0.01)


def forward(x, y):
    each = ((net(x) - y) ** 2).mean(-1)
    return each.mean(), each


grad_fn = ms.value_and_grad(forward, None, opt.parameters, has_aux=True)
miner = HardMiner(len(X))
STEPS = 40
run = ck.loop(
    ROOT,
    list(range(STEPS)),
    epochs=1,
    train=[net, opt],
    stateful={"miner": ck.attributes(miner, "losses", "seen"), "miner_rng": miner.rng},
    save=ck.SaveEvery(micro_steps=5),
    saving=ck.Saving(when_busy="wait"),
)
for _ in run:
    step = run.step
    index = miner.sample(10)
    (loss, each), grads = grad_fn(Tensor(X[index]), Tensor(Y[index]))
    opt(grads)
    miner.update(index, each.asnumpy())
    if step % 10 == 0:
        print(f"{step}: {float(loss):.4f}, seen at least once: {(miner.seen > 0).sum()}")
