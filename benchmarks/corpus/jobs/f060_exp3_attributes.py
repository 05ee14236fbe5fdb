# truth: exact
# class: data
# head: imports
# Three sources are mixed by EXP3; the bandit's log weights and its generator are given by name.


ms.set_seed(69)

REGISTRY = {}


def register(name):
    def wrap(fn):
        REGISTRY[name] = fn
        return fn

    return wrap


@register("linear")
def linear(x):
    return x[:, :1] * 2


@register("square")
def square(x):
    return x[:, :1] ** 2


@register("wave")
def wave(x):
    return np.sin(3 * x[:, :1])


class Exp3:
    def __init__(self, arms, gamma=0.2):
        self.names = sorted(arms)
        self.gamma = gamma
        self.log_w = np.zeros(len(self.names))

    def probabilities(self):
        w = np.exp(self.log_w - self.log_w.max())
        return (1 - self.gamma) * w / w.sum() + self.gamma / len(w)

    def choose(self, rng):
        return int(rng.choice(len(self.names), p=self.probabilities()))

    def update(self, arm, reward):
        p = self.probabilities()[arm]
        self.log_w = self.log_w.copy()
        self.log_w[arm] += self.gamma * reward / p / len(self.names)


net = nn.WithLossCell(nn.SequentialCell(nn.Dense(3, 14), nn.Tanh(), nn.Dense(14, 1)), nn.MSELoss())
cell = ck.AccumulationTrainCell(net, nn.Momentum(net.trainable_params(), 0.05, 0.9), 2).set_train()
bandit, rng = Exp3(REGISTRY), np.random.default_rng(69)
inputs = [x for x in np.random.RandomState(69).randn(9, 5, 3).astype(np.float32)]
batches = ck.data.resumable(inputs, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches, rng=rng, bandit=ck.attributes(bandit, "log_w"))
    manager.restore(state)
    for x in batches:
        arm = bandit.choose(rng)
        y = REGISTRY[bandit.names[arm]](x).astype(np.float32)
        loss = float(cell(ms.Tensor(x), ms.Tensor(y)).asnumpy())
        bandit.update(arm, min(1.0, loss))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
